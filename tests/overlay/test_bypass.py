"""A server whose fixes are switched off starts, and says so where probes, Prometheus and people ask."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.overlay.upstream_double import EXECUTOR, python
from tests.ports import free_ports
from trtllm_kvfix.fix_ids import FIX_IDS

# Starts an engine as upstream's server does, with the hook, and asks it what it says of itself.
SERVE = f"""
import json, sys, urllib.request
from trtllm_kvfix.overlay import import_hook
import_hook.install()
from tensorrt_llm.llmapi import update_llm_args_with_extra_dict as update
args = update({{}}, json.loads(sys.argv[1]), None)
from {EXECUTOR} import py_executor
py_executor.PyExecutor().start_worker()
py_executor.PyExecutor().start_worker()
page = ""
if sys.argv[2]:
    page = urllib.request.urlopen(f"http://127.0.0.1:{{sys.argv[2]}}/metrics").read().decode()
from pathlib import Path
files = list(Path("run").glob("*.json"))
print(json.dumps({{"args": args, "page": page, "record": py_executor.record(),
    "attested": [json.loads(file.read_text()) for file in files]}}))
"""
MODEL = {"model": "m"}


def serve(
    folder: Path, document: Any = None, port: int | str = "", code: str = SERVE, **variables: str
) -> tuple[dict[str, Any], str]:
    done = python(folder, code, json.dumps(document or MODEL), str(port), **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_metrics_and_status_say_that_every_fix_is_off(small: Path) -> None:
    port = free_ports(1)
    said, error = serve(small, port=port, TRTLLM_KVFIX_ENABLED="false", TRTLLM_KVFIX_METRICS_PORT=str(port))
    assert (said["args"], said["record"]) == (MODEL, ["upstream", "upstream"])
    assert 'trtllm_kvfix_enabled{rank="0"} 0.0' in said["page"]
    states = [line for line in said["page"].splitlines() if line.startswith("trtllm_kvfix_fix_info{")]
    assert len(states) == len(FIX_IDS) and all('state="off"' in line for line in states)
    (entry,) = said["attested"]
    assert (entry["enabled"], set(entry["fixes"].values())) == (False, {"off"})
    assert error.count("rank 0 of 1 runs WITHOUT the fixes: they are switched off") == 1, "upstream starts twice"


def test_the_server_s_own_file_may_name_the_port(small: Path) -> None:
    port = free_ports(1)
    document = MODEL | {"kvfix": {"metrics_port": port, "fixs": {}}}
    said, _ = serve(small, document, port, TRTLLM_KVFIX_ENABLED="false")
    assert (said["args"], "trtllm_kvfix_enabled" in said["page"]) == (MODEL, True)


@pytest.mark.parametrize(
    "text", ["kvfix: {metrics_port: PORT, enabled: false}", "kvfix: {metrics_port: PORT, fixs: {}}"]
)
def test_a_file_of_settings_may_name_it_right_or_wrong(small: Path, text: str) -> None:
    port = free_ports(1)
    (small / "kvfix.yaml").write_text(text.replace("PORT", str(port)))
    off = {} if "enabled" in text else {"TRTLLM_KVFIX_ENABLED": "false"}
    said, _ = serve(small, MODEL | {"kvfix": {}}, port, TRTLLM_KVFIX_CONFIG=str(small / "kvfix.yaml"), **off)
    assert (said["args"], "trtllm_kvfix_enabled" in said["page"]) == (MODEL, True)


def test_the_server_s_own_file_may_switch_them_off(small: Path) -> None:
    port = free_ports(1)
    document = MODEL | {"kvfix": {"metrics_port": port, "enabled": False}}
    said, error = serve(small, document, port, TRTLLM_KVFIX_ENABLED="true")
    assert (said["record"], 'trtllm_kvfix_enabled{rank="0"} 0.0' in said["page"]) == (["upstream", "upstream"], True)
    assert "kvfix.enabled is false in the server's configuration: it starts WITHOUT the fixes" in error


@pytest.mark.parametrize(
    "broken",
    [
        {"TRTLLM_KVFIX_METRICS_PORT": "many", "TRTLLM_KVFIX_RUNTIME_DIR": "/proc/nope"},
        {"TRTLLM_KVFIX_METRICS_PORT": "1"},
        {"TRTLLM_KVFIX_CONFIG": "missing.yaml", "TRTLLM_KVFIX_X": "1"},
    ],
)
def test_no_setting_is_in_the_way(small: Path, broken: dict[str, str]) -> None:
    """Nor is a port that others have: number 1 is for root alone, or taken."""
    said, error = serve(small, MODEL | {"kvfix": "on"}, TRTLLM_KVFIX_ENABLED="false", **broken)
    assert said["args"] == MODEL
    assert "runs WITHOUT the fixes" in error


def test_an_extension_that_cannot_be_loaded_is_not_in_the_way(small: Path) -> None:
    """Such a package refuses TensorRT-LLM; the switch is the way out."""
    port = free_ports(1)
    broken = f"import sys\nsys.modules['trtllm_kvfix._core'] = None\n{SERVE}"
    variables = {"TRTLLM_KVFIX_METRICS_PORT": str(port)}
    assert python(small, broken, json.dumps(MODEL), str(port), **variables).returncode != 0
    said, error = serve(small, MODEL | {"kvfix": {}}, port, broken, TRTLLM_KVFIX_ENABLED="false", **variables)
    assert (said["args"], "trtllm_kvfix_enabled" in said["page"]) == (MODEL, True)
    assert "the fixes are switched off, and not everybody will hear it: " in error, "`status` needs the extension"


def test_a_worker_that_mpi_spawns_says_so_too(small: Path) -> None:
    port = free_ports(1)
    code = f"""
from trtllm_kvfix.overlay import child_environment
child_environment.start_worker({{"TRTLLM_KVFIX_ENABLED": "false"}}, None, ())
{SERVE}
"""
    said, _ = serve(small, port=port, code=code, TRTLLM_KVFIX_METRICS_PORT=str(port))
    assert "trtllm_kvfix_enabled" in said["page"]


@pytest.mark.parametrize("before", ["args =", "py_executor.PyExecutor().start_worker()"])
def test_a_program_that_turns_the_fixes_on_is_not_told_otherwise(small: Path, before: str) -> None:
    code = SERVE.replace(before, f"import small_fixes, trtllm_kvfix; trtllm_kvfix.enable()\n{before}", 1)
    said, error = serve(small, code=code, TRTLLM_KVFIX_ENABLED="false")
    assert "ours" in said["record"] and said["attested"][0]["enabled"]
    assert "WITHOUT" not in error


def test_what_cannot_be_wrapped_is_left(small: Path) -> None:
    (small / "tensorrt_llm/_torch/pyexecutor/py_executor.py").write_text("def record(): return []\nPyExecutor = 3\n")
    code = SERVE.replace("py_executor.PyExecutor().start_worker()\n", "")
    said, error = serve(small, code=code, TRTLLM_KVFIX_ENABLED="false")
    assert said["args"] == MODEL
    assert error.startswith("[trtllm-kvfix]") and "py_executor stays as it is, without the fixes: " in error
