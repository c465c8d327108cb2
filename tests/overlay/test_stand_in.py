"""A server of the stand-in below `run`, in every variant, with a configuration that asks for the fixes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fresh
from tests.overlay.upstream_double import environment
from tests.overlay.variant_table import probed
from tests.standin.fixture import STANDIN, VARIANTS

CONFIG = "kv_cache_config: {host_cache_size: 4096}\nkvfix:\n  fixes: {input-copy-fence: off}\n"
# Only a connector brings it in, and these servers have none.
NEVER_IMPORTED = "nixl-listener"
MARK = "rank 0 of 1, variant "


def serve(folder: Path, variant: str, *launcher: str, config: str = CONFIG) -> subprocess.CompletedProcess[str]:
    (folder / "server.yaml").write_text(config)
    environ = environment(STANDIN, STANDIN_VARIANT=variant, TLLM_WORKER_USE_SINGLE_PROCESS="1")
    environ["TRTLLM_KVFIX_RUNTIME_DIR"] = str(folder / "run")
    return fresh.run(
        [*launcher, sys.executable, "-m", "tensorrt_llm.commands.serve", "model", "--config", "server.yaml"],
        cwd=folder,
        env=environ,
    )


def below_run(folder: Path, variant: str, config: str = CONFIG) -> subprocess.CompletedProcess[str]:
    return serve(folder, variant, sys.executable, "-m", "trtllm_kvfix", "run", "--", config=config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_server_runs_with_what_its_build_needs(tmp_path: Path, variant: str) -> None:
    done = below_run(tmp_path, variant)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["error"] is None
    line = next(line for line in done.stderr.splitlines() if MARK in line)
    words = dict(part.split(": ") for part in line.partition(MARK)[2].split("; ")[1:])
    assert line.partition(MARK)[2].startswith(f"{variant};")
    needed = {fix_id for fix_id, state in probed(variant)[1].items() if state == "needed"}
    assert "still the originals" not in done.stderr  # every name of these builds is covered
    assert ids(words, "applied") == needed - {"input-copy-fence", NEVER_IMPORTED}
    assert ids(words, "off") == needed & {"input-copy-fence"}
    assert ids(words, "unknown") == set()


def test_server_runs_without_what_cannot_be_told_and_says_so(tmp_path: Path) -> None:
    done = below_run(tmp_path, "mangled")
    assert done.returncode == 0, done.stderr
    assert "fix staged-offsets-v2 is NOT applied, because its probe cannot tell whether it fits: " in done.stderr


def test_fix_that_is_insisted_on_stops_the_server_where_it_cannot_be_told(tmp_path: Path) -> None:
    done = below_run(tmp_path, "mangled", config="kvfix: {fixes: {staged-offsets-v2: on}}")
    assert done.returncode != 0
    assert "kvfix.fixes.staged-offsets-v2 is on, but its probe cannot tell whether it fits" in done.stderr


def test_without_the_hook_the_server_refuses_the_configuration(tmp_path: Path) -> None:
    done = serve(tmp_path, "B")
    assert done.returncode != 0
    assert "kvfix" in done.stderr and done.stdout == ""


def test_configuration_file_of_the_benchmark_may_have_the_section_too(tmp_path: Path) -> None:
    """`trtllm-bench` hands upstream the file's name instead of its content."""
    (tmp_path / "bench.yaml").write_text("max_batch_size: 4\nkvfix: {fixes: {token-budget: off}}\n")
    code = (
        "import trtllm_kvfix; trtllm_kvfix.enable()\n"
        "from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_options\n"
        "print(update_llm_args_with_extra_options({'model': 'm'}, 'bench.yaml'))\n"
        "print(trtllm_kvfix.status()['fixes']['token-budget']['word'])"
    )
    environ = environment(STANDIN, STANDIN_VARIANT="B", TRTLLM_KVFIX_RUNTIME_DIR=str(tmp_path / "run"))
    done = fresh.run([sys.executable, "-c", code], cwd=tmp_path, env=environ)
    assert done.stdout.splitlines() == ["{'model': 'm', 'max_batch_size': 4}", "off"], done.stderr


def test_all_fixes_can_be_taken_back_and_the_classes_are_as_they_were(tmp_path: Path) -> None:
    code = """
import json, sys
import trtllm_kvfix
from importlib import import_module

def members():
    return {
        f"{name}.{each}.{member}": id(value)
        for name, module in list(sys.modules.items()) if name.startswith("tensorrt_llm") and module is not None
        for each, kept in list(vars(module).items()) if isinstance(kept, type)
        for member, value in vars(kept).items() if not member.startswith("__") or member == "__init__"
    }

for name in ("py_executor_creator", "resource_manager"):
    import_module("tensorrt_llm._torch.pyexecutor." + name)
before = members()
applied = [each for each, status in trtllm_kvfix.enable()["fixes"].items() if status["applied"]]
during = members()
left = trtllm_kvfix.disable()
print(json.dumps([applied, sum(during[each] != before.get(each) for each in during), left, members() == before]))
"""
    environ = environment(STANDIN, STANDIN_VARIANT="B", TRTLLM_KVFIX_RUNTIME_DIR=str(tmp_path))
    done = fresh.run([sys.executable, "-c", code], cwd=tmp_path, env=environ)
    applied, changed, left, restored = json.loads(done.stdout)
    assert {"staged-offsets-v1", "batched-admission", "input-copy-fence"} <= set(applied), done.stderr
    assert changed >= len(applied)
    assert (left, restored) == ([], True)


def ids(words: dict[str, Any], word: str) -> set[str]:
    return set(words.get(word, "").split(", ")) - {""}
