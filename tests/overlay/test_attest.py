"""Processes report about themselves: reports are written, read by others, compared, and dropped when they end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

from tests.overlay.entries import SEAM, attestation, entry
from tests.overlay.upstream_double import EXECUTOR, python
from tests.ports import free_ports
from trtllm_kvfix import cli
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay import attest
from trtllm_kvfix.overlay.fix import STATES, Answer, State
from trtllm_kvfix.overlay.registry import FixStatus
from trtllm_kvfix.settings import Word


def test_entry_of_a_living_process_is_read_as_it_was_written(tmp_path: Path) -> None:
    mine = attestation(3, 4)
    attest.write(tmp_path, mine)
    (found,) = attest.live(tmp_path)
    assert 0 <= found.pop("age_s") < 60 and found == mine.as_dict()


def test_entries_of_ended_processes_are_dropped(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid, start in ((ended.pid, 1), (os.getpid(), 1)):  # the second: a later process got the number
        (tmp_path / f"{pid}.json").write_text(json.dumps(entry(pid=pid, process_start=start)))
    assert attest.live(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_entries_of_other_hosts_and_other_files_are_left(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps(entry(host="elsewhere", pid=1)))
    (tmp_path / "2.json").write_text("not json")
    (tmp_path / "3.json").write_text("{}")
    assert attest.live(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_entry_goes_when_the_process_ends_in_order(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom trtllm_kvfix.overlay import attest\n"
        "from tests.overlay.entries import attestation\n"
        f"file = attest.write(Path({str(tmp_path)!r}), attestation()); print(file.exists())"
    )
    assert python(tmp_path, code).stdout == "True\n"
    assert list(tmp_path.iterdir()) == []


def test_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(KvfixError, match="others may write in it"):
        attest.write(tmp_path, attestation())


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"rank": 1, "pid": 7, "command": "other", "started": False, "aliases": ["x"]}, []),
        ({"variant": "C"}, ["variant D / C"]),
        ({"package": "9"}, [f"package {attestation().package} / 9"]),
        ({"seams": {SEAM: "source:2"}}, [f"seam {SEAM} source:1 / source:2"]),
        ({"choices": {**entry()["choices"], "token-budget": "off"}}, ["setting of token-budget auto / off"]),
        ({"fixes": {**entry()["fixes"], "token-budget": "unknown"}}, ["fix token-budget applied / unknown"]),
        ({"fixes": {**entry()["fixes"], "token-budget": "displaced"}}, ["fix token-budget applied / displaced"]),
        # A module that only one of them has imported yet says nothing.
        ({"fixes": {**entry()["fixes"], "nixl-listener": "applied"}}, []),
        ({"seams": {**entry()["seams"], "nixl:x": "source:9"}}, []),
    ],
)
def test_what_counts_as_a_difference(changes: dict[str, Any], found: list[str]) -> None:
    assert attest.differences(entry(), entry(**changes)) == found


def test_status_shows_every_process_with_its_fixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path))
    none = CliRunner().invoke(cli.main, ["status"])
    assert none.output.startswith("no process of this user runs TensorRT-LLM with the hook (looked in ")
    attest.write(tmp_path, attestation(1, 2))
    shown = CliRunner().invoke(cli.main, ["status"]).output
    assert shown.splitlines() == [
        f"rank 1/2, process {os.getpid()}, engine started, variant D, job job",
        "  applied: token-budget",
        "  waiting: nixl-listener",
        "  not-applicable: concurrent-pins",
        "",
        *(f"{state}: {STATES[state]}" for state in ("applied", "waiting", "not-applicable")),
    ]
    (listed,) = json.loads(CliRunner().invoke(cli.main, ["status", "--json"]).output)
    assert 0 <= listed.pop("age_s") < 60 and listed == attestation(1, 2).as_dict()


def test_status_names_a_server_that_another_version_of_this_package_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade it still runs, and it was said that no process does."""
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path))
    file = attest.write(tmp_path, attestation())
    file.write_text(json.dumps(entry(format=attest.FORMAT - 1, package="0.0.9")))
    for name, more in (("2", {"process_start": 1}), ("3", {"host": "elsewhere"}), ("4", {"package": None})):
        (tmp_path / f"{name}.json").write_text(json.dumps(entry(format=attest.FORMAT - 1, **more)))
    assert CliRunner().invoke(cli.main, ["status"]).output.splitlines() == [
        f"process {os.getpid()} runs with version 0.0.9 of this package, whose `status` shows more: restart the server",
    ]
    assert json.loads(CliRunner().invoke(cli.main, ["status", "--json"]).output) == []
    assert attest.live(tmp_path) == []


def test_status_shows_faults_and_aliases_and_fits_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path))
    more: dict[str, Any] = {
        "faults": {"token-budget": 2},
        "first_errors": {"token-budget": "KeyError: 7"},
        "aliases": ["a.b"],
    }
    attest.write(tmp_path, replace(attestation(started=False), **more))
    lines = CliRunner().invoke(cli.main, ["status"]).output.splitlines()
    assert "  token-budget had 2 faults, the first: KeyError: 7" in lines
    assert "  alias, which still calls the original: a.b" in lines
    assert "no engine" in lines[0] and max(map(len, lines)) <= 80


def test_status_says_whether_upstream_skips_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path))
    attest.write(tmp_path, replace(attestation(), prologue_trim="verify"))
    lines = CliRunner().invoke(cli.main, ["status"]).output.splitlines()
    assert " ".join(map(str.strip, lines[:2])).startswith(
        f"rank 0/1, process {os.getpid()}, engine started, variant D, step-prologue trim verify, job job"
    )


def test_status_shows_what_the_canary_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path))
    silent: dict[str, Any] = {"state": "observes", "counts": {}, "findings": []}
    spoke = silent | {"counts": {"changed": 2, "unfilled": 1}, "findings": [{"text": "block in slot 7 has changed"}]}
    attest.write(tmp_path, replace(attestation(), canaries=[silent, spoke]))
    lines = CliRunner().invoke(cli.main, ["status"]).output.splitlines()
    assert "  canary: observes, no finding" in lines
    assert "  canary: observes, 3 findings, the first: block in slot 7 has changed" in lines


def choice_and_answer() -> Iterator[FixStatus]:
    """Each combination of what decides the state of a fix."""
    answers = [None, *(Answer(state, "why") for state in State)]
    flags = (False, True)
    for choice, answer, applied, gone, down in product(get_args(Word), answers, flags, flags, flags):
        displaced = {"seam": "other"} if gone else {}
        yield FixStatus("a", "", choice, answer, applied, {}, displaced=displaced, stood_down=down)


def test_every_state_of_a_fix_has_its_meaning() -> None:
    assert {status.word for status in choice_and_answer()} == set(STATES)


def test_status_looks_into_the_folder_that_the_file_of_settings_names(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(f"kvfix: {{runtime_dir: {tmp_path / 'elsewhere'}}}\n")
    result = CliRunner().invoke(cli.main, ["--config", str(file), "status"])
    assert f"(looked in {tmp_path / 'elsewhere'})" in result.output


def test_a_process_attests_when_it_imports_upstream_and_again_when_its_engine_starts(small: Path) -> None:
    code = f"""
import small_fixes, trtllm_kvfix
from trtllm_kvfix.overlay import attest
from pathlib import Path
def show():
    print([(each["started"], each["fixes"]["token-budget"], each["seams"]) for each in attest.live(Path("run"))])
trtllm_kvfix.enable()
show()
from {EXECUTOR}.py_executor import PyExecutor
show()
print(PyExecutor().start_worker())
show()
"""
    done = python(small, code)
    lines = done.stdout.splitlines()
    assert lines[0] == "[]"
    assert lines[1].startswith("[(False, 'applied', {'tensorrt_llm._torch.pyexecutor.resource_manager:KVCacheManager.")
    assert "source:" in lines[1]
    assert lines[2] == "started"
    assert lines[3] == lines[1].replace("False", "True")
    assert "rank 0 of 1, variant " in done.stderr
    assert "; applied: token-budget, nixl-listener" in done.stderr
    assert done.stderr.count("[trtllm-kvfix]") == 1


def test_forked_process_attests_for_itself_when_its_engine_starts(small: Path) -> None:
    code = f"""
import os, sys, small_fixes, trtllm_kvfix
from pathlib import Path
from {EXECUTOR}.py_executor import PyExecutor
from trtllm_kvfix.overlay import attest
trtllm_kvfix.enable()
child = os.fork()
if child == 0:
    PyExecutor().start_worker()
    print(sorted((each["pid"] == os.getpid(), each["started"]) for each in attest.live(Path("run"))), flush=True)
    sys.exit()  # runs the exit handlers that it has from its parent
os.wait()
print([(each["pid"] == os.getpid(), each["started"]) for each in attest.live(Path("run"))])
"""
    assert python(small, code).stdout.splitlines() == ["[(False, False), (True, True)]", "[(True, False)]"]


def test_folder_that_cannot_be_written_keeps_no_single_process_from_starting(small: Path) -> None:
    (small / "file").touch()
    code = f"""
import small_fixes, trtllm_kvfix
from {EXECUTOR}.py_executor import PyExecutor
trtllm_kvfix.enable()
print(PyExecutor().start_worker())
"""
    done = python(small, code, TRTLLM_KVFIX_RUNTIME_DIR=str(small / "file" / "below"))
    assert done.stdout == "started\n"
    assert done.stderr.count("the attestation cannot be written: ") == 1


def test_engine_that_starts_serves_metrics_when_asked_and_says_once_what_is_on(small: Path) -> None:
    port = free_ports(1)
    code = f"""
import small_fixes, trtllm_kvfix, urllib.request
from {EXECUTOR}.py_executor import PyExecutor
trtllm_kvfix.enable(metrics_port={port})
for attempt in range(2):
    PyExecutor().start_worker()
page = urllib.request.urlopen("http://127.0.0.1:{port}/metrics").read().decode()
print([line for line in page.splitlines() if "fix_info{{" in line])
"""
    done = python(small, code)
    for fix_id in ("token-budget", "nixl-listener"):
        assert f'trtllm_kvfix_fix_info{{fix="{fix_id}",rank="0",state="applied"}} 1.0' in done.stdout, done.stderr
    assert done.stderr.count("rank 0 of 1") == 1


def test_lines_go_where_the_application_says(small: Path) -> None:
    code = f"""
import logging, sys
logging.basicConfig(stream=sys.stdout, format="mine: %(message)s")
import small_fixes, trtllm_kvfix
from {EXECUTOR}.py_executor import PyExecutor
trtllm_kvfix.enable()
PyExecutor().start_worker()
"""
    done = python(small, code)
    assert done.stdout.startswith("mine: rank 0 of 1, variant ")
    assert done.stderr == ""


def test_engine_of_a_process_whose_fixes_failed_does_not_start_even_if_the_import_error_was_swallowed(
    small: Path,
) -> None:
    code = f"""
import small_fixes, dataclasses
ok, bad = small_fixes.ALL
small_fixes.stand.ALL = (ok, dataclasses.replace(bad, replacements=lambda up, settings: 1 / 0))
from {EXECUTOR} import py_executor
from trtllm_kvfix import process
try:
    process.begin()
except Exception as error:
    print(type(error).__name__)
print(py_executor.record())
py_executor.PyExecutor().start_worker()
"""
    done = python(small, code)
    assert done.stdout.splitlines() == ["ApplyError", "['upstream', 'upstream']"]
    assert done.stderr.rstrip().endswith("kvfix.fixes.nixl-listener: off starts without it")


def test_a_loop_that_fails_leaves_its_flight_record_and_its_exception(small: Path) -> None:
    code = """
import small_fixes, trtllm_kvfix
trtllm_kvfix.enable()
from tensorrt_llm._torch.pyexecutor.py_executor import PyExecutor
executor = PyExecutor()
executor.start_worker()
try:
    executor._event_loop_wrapper()
except KeyError as error:
    print("raised", error)
"""
    done = python(small, code)
    assert done.stdout == "raised 'gone'\n", done.stderr
    (file,) = (small / "run").glob("*.flight.json")
    record = json.loads(file.read_text())
    assert record["why"] == "KeyError: 'gone'"
    assert [entry["kind"] for entry in record["entries"]] == ["engine started", "loop failed"]
    assert not list((small / "run").glob("*.flight")), "the process ended in order"
