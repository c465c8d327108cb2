"""`doctor` on the stand-in: the buffers that its builds refill in place, what guards them, and what cannot be seen."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fresh
from tests.overlay.upstream_double import ROOT, environment
from tests.standin.fixture import STANDIN
from trtllm_kvfix.fixes import ALL

COMMAND = (sys.executable, "-m", "trtllm_kvfix")
FENCE, V1, V2 = "input-copy-fence", "staged-offsets-v1", "staged-offsets-v2"
ATTENTION = "_torch/attention_backend/trtllm.py"
AUTO_DEPLOY = "_torch/auto_deploy/shim/ad_executor.py"
PER_LAYER = "_torch/pyexecutor/kv_cache/kv_cache_manager_v2.py"
TABLE = "host_kv_cache_block_offsets"


def doctor(folder: Path, variant: str, *launcher: str, **variables: str) -> tuple[dict[str, Any], int]:
    return reported([*launcher, *COMMAND, "doctor", "--json"], folder, {"STANDIN_VARIANT": variant, **variables})


def reported(command: list[str], folder: Path, variables: dict[str, str]) -> tuple[dict[str, Any], int]:
    environ = environment(folder, **variables)
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (STANDIN, ROOT)))
    done = fresh.run(command, cwd=folder, env=environ)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def guards(report: dict[str, Any]) -> dict[tuple[str, str], str | None]:
    return {(each["file"], each["name"]): each["guard"] for each in report["overlay"]["buffers"]}


def test_every_buffer_is_named_and_has_a_guard_only_below_run(tmp_path: Path) -> None:
    bare = guards(doctor(tmp_path, "C")[0])
    assert set(bare) >= {(ATTENTION, "prompt_lens_cpu"), (ATTENTION, TABLE), (PER_LAYER, "_host_scratch_begs_staging")}
    assert set(bare.values()) == {None}
    report, exit_code = doctor(tmp_path, "C", *COMMAND, "run", "--")
    guarded = guards(report)
    assert exit_code == 0 and guarded.keys() == bare.keys()
    assert guarded[ATTENTION, "prompt_lens_cpu"] == FENCE
    assert guarded[ATTENTION, TABLE] == V1 and guarded[PER_LAYER, TABLE] == V2
    assert [place for place, guard in guarded.items() if guard is None] == [(AUTO_DEPLOY, "prompt_lens_cpu")]


def test_the_fence_of_upstream_is_a_guard_without_us(tmp_path: Path) -> None:
    found = guards(doctor(tmp_path, "F")[0])
    assert found["_torch/attention/backends/trtllm.py", "prompt_lens_cpu"] == FENCE


def test_a_fix_that_is_off_guards_nothing(tmp_path: Path) -> None:
    report, exit_code = doctor(tmp_path, "B", *COMMAND, "run", "--fix", f"{FENCE}=off", "--")
    assert exit_code == 0
    assert guards(report)[ATTENTION, "prompt_lens_cpu"] is None
    assert guards(report)[ATTENTION, TABLE] == V1


def test_a_fix_that_the_file_of_settings_turns_off_is_told(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(f"kvfix: {{fixes: {{{FENCE}: off}}}}\n")
    command = [*COMMAND, "--config", str(file), "doctor", "--json"]
    report, exit_code = reported(command, tmp_path, {"STANDIN_VARIANT": "B"})
    assert exit_code == 1, "no hook brings the others"
    assert [each.split()[1] for each in report["overlay"]["switched_off"]] == [FENCE]


@pytest.mark.parametrize("launcher", [(), (*COMMAND, "run", "--")])
def test_a_build_that_nobody_knows_is_a_problem_until_it_is_accepted(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    report, exit_code = doctor(tmp_path, "mangled", *launcher)
    unknown = [each["id"] for each in report["overlay"]["fixes"] if each["state"] == "unknown"]
    assert set(unknown) == {fix.id for fix in ALL} - {"nixl-listener"} and exit_code == 1
    assert report["overlay"]["variant"] == "unknown"
    unknown = [fix.id for fix in ALL if fix.id in unknown and fix.only_for != "V2"]  # its server would run V1
    for fix_id, problem in zip(unknown, report["problems"], strict=True):
        assert problem.startswith(f"fix {fix_id} is not applied, because its probe cannot tell whether it fits: ")
        assert problem.endswith(f"kvfix.fixes.{fix_id}: off accepts that")
    off = {"TRTLLM_KVFIX_FIXES_" + fix_id.upper().replace("-", "_"): "off" for fix_id in unknown}
    assert doctor(tmp_path, "mangled", *launcher, **off)[1] == 0
    forced = dict.fromkeys(off, "on") | {"TRTLLM_KVFIX_FORCE": "true"}
    assert doctor(tmp_path, "mangled", *launcher, **forced)[1] == 0


def test_a_fix_that_only_looks_on_is_no_guard(tmp_path: Path) -> None:
    report, exit_code = doctor(tmp_path, "B", *COMMAND, "run", "--fix", f"{V1}=observe", "--")
    (outlook,) = [each["outlook"] for each in report["overlay"]["fixes"] if each["id"] == V1]
    assert outlook == "needed, only observed" and exit_code == 0
    assert guards(report)[ATTENTION, TABLE] == FENCE


def test_a_fix_that_cannot_look_on_is_refused_by_name(tmp_path: Path) -> None:
    environ = environment(tmp_path, STANDIN_VARIANT="C") | {"PYTHONPATH": os.pathsep.join(map(str, (STANDIN, ROOT)))}
    command = [*COMMAND, "run", "--fix", "concurrent-pins=observe", "--", sys.executable, "-c", "import tensorrt_llm"]
    done = fresh.run(command, cwd=tmp_path, env=environ)
    assert done.returncode == 2
    assert "--fix concurrent-pins is 'observe': this fix cannot observe: a fix knows which thread" in done.stderr
