"""`doctor` describes an installed TensorRT-LLM, and exits with 1 if something is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fresh
from tests.overlay.upstream_double import environment
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import Answer, State
from trtllm_kvfix.overlay.registry import FixStatus
from trtllm_kvfix.tools.doctor.examine import candidates, problems, switched_off

SOURCE = """
class Metadata:
    def prepare(self):
        self.prompt_lens_cuda[:n].copy_(self.prompt_lens_cpu[:n], non_blocking=True)
        self.table.copy_(self.host_kv_cache_block_offsets[0, :n], non_blocking=True)
        self.again.copy_(self.prompt_lens_cpu, non_blocking=True)
        self.lens = self.host_lens.to("cuda", non_blocking=True)
        metadata.slots[:n].copy_(
            metadata.indexer.host_slots[:n],
            non_blocking=True)
        self.a.copy_(self.fresh(), non_blocking=True)
        self.a.copy_(self.fresh().kept, non_blocking=True)
        self.b.copy_(self.lens_cuda, non_blocking=True)
        self.c.copy_(self.waited_for)
        self.d.copy_(self.waited_for, non_blocking=False)
        self.e.copy_(local, non_blocking=True)
        self.f.copy_(new_tensors_device.lens, non_blocking=True)

    def of_this_call(self):
        self.host_fresh = torch.empty_like(self.a, device="cpu", pin_memory=True)
        self.host_fresh[0] = 1
        self.a.copy_(self.host_fresh, non_blocking=True)

    def of_another_name(self):
        rows = self.host_rows[:3]
        again = rows
        self.a.copy_(again, non_blocking=True)
        rows = make_rows()
        self.a.copy_(rows, non_blocking=True)

    def by_a_kernel(self):
        copy_idx = self.index_mapper.get_copy_index(ids, 1, 1)
        copy_batch_block_offsets_to_device(self.host_table, dst, copy_idx, self.index_scales, self.kv_offset, 0)
"""
NAMES = [
    "prompt_lens_cpu",
    "host_kv_cache_block_offsets",
    "host_lens",
    "host_slots",
    "host_rows",
    "host_table",
    "copy_index",
]


def doctor(folder: Path, *arguments: str, prelude: str = "", **variables: str) -> tuple[dict[str, Any], int]:
    """Runs `doctor` on the double of upstream and its two fixes."""
    code = (
        f"import small_fixes\n{prelude}\nimport sys; sys.argv = ['trtllm-kvfix', 'doctor', '--json']\n"
        "from trtllm_kvfix.cli import main; main()"
    )
    done = fresh.run([sys.executable, *arguments, "-c", code], cwd=folder, env=environment(folder, **variables))
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report, done.returncode


def test_needed_fixes_that_nothing_brings_are_problems(small: Path) -> None:
    report, exit_code = doctor(small)
    assert exit_code == 1
    assert report["overlay"]["hook"] == "none"
    assert [(each["id"], each["state"], each["word"]) for each in report["overlay"]["fixes"]] == [
        ("token-budget", "needed", "needed"),
        ("nixl-listener", "needed", "needed"),
    ]
    assert report["problems"] == [
        (
            "2 fixes are needed and no hook is active (token-budget, nixl-listener): `trtllm-kvfix run -- COMMAND` "
            "starts a server with them, `trtllm-kvfix enable` installs a hook"
        )
    ]
    assert report["overlay"]["self_tests"] == {"token-budget": "holds", "nixl-listener": "holds"}


def test_below_run_all_is_well_and_one_that_is_off_is_told(small: Path) -> None:
    (small / "sitecustomize.py").write_text("import small_fixes\n")
    command = [sys.executable, "-m", "trtllm_kvfix"]
    for options in ([], ["--fix", "token-budget=off"]):
        done = fresh.run(
            [*command, "run", *options, "--", *command, "doctor", "--json"], cwd=small, env=environment(small)
        )
        report = json.loads(done.stdout)
        assert (report["overlay"]["hook"], done.returncode) == ("run", 0)
        off = ["fix token-budget is needed (its seam is there) and switched off: kvfix.fixes.token-budget is off"]
        assert (report["problems"], report["overlay"]["switched_off"]) == ([], off if options else [])
        outlook = "needed, switched off" if options else "needed, will be applied"
        assert report["overlay"]["fixes"][0]["outlook"] == outlook


def test_switch_that_is_off_is_named(small: Path) -> None:
    report, exit_code = doctor(small, TRTLLM_KVFIX_ENABLED="false")
    assert (report["overlay"]["hook"], exit_code) == ("off", 0)
    told = report["overlay"]["switched_off"]
    assert len(told) == 2 and all(each.endswith(": TRTLLM_KVFIX_ENABLED or kvfix.enabled is false") for each in told)
    assert report["overlay"]["fixes"][0]["outlook"] == "needed, switched off"


NEEDED, UNDECIDED = Answer(State.NEEDED, "its seam is there"), Answer(State.UNKNOWN, "it takes a batch")
STATUSES = (
    FixStatus("a", "", "auto", NEEDED, applied=False, seams={}),
    FixStatus("b", "", "on", UNDECIDED, applied=False, seams={}),
    FixStatus("c", "", "off", NEEDED, applied=False, seams={}),
    FixStatus("d", "", "observe", NEEDED, applied=False, seams={}),
    FixStatus("e", "", "off", UNDECIDED, applied=False, seams={}),
    FixStatus("f", "", "auto", NEEDED, applied=True, seams={}),
    FixStatus("g", "", "auto", None, applied=False, seams={}),
)
CANNOT_TELL = (
    "fix b is not applied, because its probe cannot tell whether it fits: it takes a batch; "
    "kvfix.fixes.b: off accepts that"
)
NO_HOOK = (
    "2 fixes are needed and no hook is active (a, d): `trtllm-kvfix run -- COMMAND` starts a server with them, "
    "`trtllm-kvfix enable` installs a hook"
)


@pytest.mark.parametrize(
    ("hook", "forced", "expected"),
    [
        ("run", False, [CANNOT_TELL]),
        ("persistent", True, []),
        ("none", True, [NO_HOOK]),
        ("off", False, []),
    ],
)
def test_each_fix_that_a_server_would_lack_undecided_is_a_problem(hook: str, forced: bool, expected: list[str]) -> None:
    assert problems(STATUSES, hook, forced=forced) == expected


@pytest.mark.parametrize(("hook", "fixes"), [("run", "c"), ("none", "c"), ("off", "acd")])
def test_each_fix_that_somebody_has_switched_off_is_told(hook: str, fixes: str) -> None:
    told = switched_off(STATUSES, hook)
    assert [each.split()[1] for each in told] == list(fixes)


def test_fix_whose_self_test_fails_is_a_problem(small: Path) -> None:
    prelude = (
        "import dataclasses\ndef fail(): assert 1 == 2, 'it does not hold'\n"
        "small_fixes.stand.ALL = (dataclasses.replace(small_fixes.ALL[0], self_test=fail),)"
    )
    report, exit_code = doctor(small, prelude=prelude)
    assert exit_code == 1
    failed = "fix token-budget fails its self-test: AssertionError: it does not hold"
    assert report["problems"][0] == failed
    report, _ = doctor(small, prelude=prelude, TRTLLM_KVFIX_FIXES_TOKEN_BUDGET="off")
    assert failed not in report["problems"], "switched off it does no harm"


def test_upstream_that_cannot_be_imported_is_a_problem_and_its_noise_stays_out_of_the_report(small: Path) -> None:
    (small / "tensorrt_llm/__init__.py").write_text(
        "print('hello')\nimport os; os.write(1, b'from C')\nimport absent\n"
    )
    report, exit_code = doctor(small)
    assert exit_code == 1
    assert report["problems"] == [
        "tensorrt_llm cannot be imported: ModuleNotFoundError: No module named 'absent'",
    ]


def test_buffers_are_listed_with_what_guards_them(small: Path) -> None:
    file = small / "tensorrt_llm/_torch/attention_backend/trtllm.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    report, _ = doctor(small)
    assert [(each["name"], each["file"], each["guard"]) for each in report["overlay"]["buffers"]] == [
        (name, "_torch/attention_backend/trtllm.py", None) for name in NAMES
    ]


@pytest.mark.parametrize(
    ("file", "guards", "table_guards"),
    [
        ("pyexecutor/resource_manager.py", ["input-copy-fence"], ["staged-offsets-v1", "input-copy-fence"]),
        ("attention_backend/trtllm.py", ["input-copy-fence"], ["staged-offsets-v1", "input-copy-fence"]),
        ("pyexecutor/kv_cache/kv_cache_manager_v2.py", ["input-copy-fence"], ["staged-offsets-v2", "input-copy-fence"]),
        ("attention_backend/sparse/dsa.py", ["input-copy-fence"], ["input-copy-fence"]),
        ("auto_deploy/shim/ad_executor.py", [], []),
    ],
)
def test_what_may_guard_a_buffer(tmp_path: Path, file: str, guards: list[str], table_guards: list[str]) -> None:
    path = tmp_path / "_torch" / file
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    found = {each.name: each for each in candidates(tmp_path)}
    assert list(found) == NAMES
    assert list(found["host_kv_cache_block_offsets"].guards(ALL)) == table_guards
    assert list(found["prompt_lens_cpu"].guards(ALL)) == guards
    assert found["prompt_lens_cpu"].line == 4


@pytest.mark.parametrize("text", ["x = =", "x = \0", f"x = {5_000 * '-'}1"], ids=["later", "null", "deep"])
def test_source_that_this_python_cannot_read_is_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "_torch").mkdir()
    (tmp_path / "_torch/later.py").write_text(f"{text} # non_blocking=True")
    assert candidates(tmp_path) == []


def test_what_only_has_the_name_of_a_source_is_passed_over(tmp_path: Path) -> None:
    """Emacs marks a file that it has changed and not written by a link to nowhere."""
    (tmp_path / "_torch/folder.py").mkdir(parents=True)
    (tmp_path / "_torch/.#edited.py").symlink_to("user@host.1234:1700000000")
    assert candidates(tmp_path) == []


def of_all_fixes(folder: Path) -> tuple[dict[str, Any], int]:
    """The report on what is installed in the folder."""
    command = [sys.executable, "-m", "trtllm_kvfix", "doctor", "--json"]
    done = fresh.run(command, env=environment(folder))
    assert done.stdout, (done.returncode, done.stderr)
    return json.loads(done.stdout), done.returncode


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("tensorrt_llm/__init__.py", "", "has no tensorrt_llm._torch.pyexecutor.resource_manager, so no probe says"),
        ("tensorrt_llm.py", "", "tensorrt_llm.py has no tensorrt_llm._torch.pyexecutor.resource_manager, so no probe"),
        (
            "tensorrt_llm/left_over.txt",
            "",
            "usual causes: an incomplete installation, or a release without the PyTorch",
        ),
        ("tensorrt_llm/__init__.py", "import sys\nsys.exit(3)\n", "tensorrt_llm cannot be imported: SystemExit: 3"),
    ],
)
def test_an_installation_that_is_broken_does_not_look_like_one_that_needs_nothing(
    tmp_path: Path, file: str, text: str, problem: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    report, exit_code = of_all_fixes(tmp_path)
    assert exit_code == 1
    assert any(problem in each for each in report["problems"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            "class Mute(Exception):\n    def __str__(self):\n        raise TypeError\nraise Mute",
            "Mute: its text cannot be made (TypeError)",
        ),
    ],
)
def test_managers_that_cannot_be_imported_do_not_look_like_a_build_that_needs_nothing(
    tmp_path: Path, text: str, problem: str
) -> None:
    folder = tmp_path / "tensorrt_llm" / "_torch" / "pyexecutor"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    (folder / "resource_manager.py").write_text(f"{text}\n")
    report, exit_code = of_all_fixes(tmp_path)
    assert exit_code == 1
    assert f"tensorrt_llm._torch.pyexecutor.resource_manager cannot be imported: {problem}" in report["problems"]
