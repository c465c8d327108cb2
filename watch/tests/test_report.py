"""What a report says to people and programs: remedies, JSON by its schema, SARIF, and two of them compared."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

import jsonschema
import pytest
from click.testing import CliRunner

from hostrace.command import watch as hostrace
from hostrace.races import NUMBERS, Frame, Race, Stack
from hostrace.report import FORMAT, Report, as_json, remedy, summary
from hostrace.sarif import sarif
from watch.tests.conftest import ROOT, WATCH, Watch
from watch.tests.made import made_race, made_report

SCHEMA = json.loads(files("hostrace").joinpath("report.schema.json").read_text())


def valid(report: dict[str, Any]) -> None:
    jsonschema.validate(report, SCHEMA)


@pytest.mark.parametrize("arm", ["racy", "repaired"])
def test_a_report_in_json_is_as_the_schema_has_it(watch: Watch, arm: str) -> None:
    report = watch("watch.gpu.run_planted", "copy_to_device", arm, "3").report
    valid(report)
    assert report["format"] == FORMAT == SCHEMA["properties"]["format"]["const"]
    assert report["verdict"] == {"racy": "race", "repaired": "silent"}[arm]
    with pytest.raises(jsonschema.ValidationError):
        valid(report | {"certain": True})


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (made_report(unordered=[made_race(grade="unordered")]), "race"),
        (made_report(possible=[made_race(grade="possible")]), "possible"),
        (made_report(suppressed=[made_race()]), "silent"),
        (made_report(guarded=0), "nothing-watched"),
        (made_report(guarded=0, processes=0, refused=1), "blind"),
        (made_report(guarded=0, numbers={**dict.fromkeys(NUMBERS, 0), "unwatched_streams": 3}), "blind"),
    ],
)
def test_the_verdict_is_one_word(report: Report, verdict: str) -> None:
    made = json.loads(json.dumps(as_json(report)))
    valid(made)
    assert made["verdict"] == verdict


def test_a_report_of_uses_that_could_not_be_watched_says_so() -> None:
    report = made_report(guarded=0, numbers={**dict.fromkeys(NUMBERS, 0), "unwatched_streams": 3})
    assert "no use could be watched, so this says nothing about races" in summary(report)


def test_a_race_comes_back_from_json_as_it_was() -> None:
    race = made_race(touch_stack=Stack((), (Frame("a.cc", 3, "f()", "/bin/a", 77),), 12))
    made = json.loads(json.dumps(as_json(made_report(races=(race,)))))
    assert Race.of(made["races"][0]) == race


@pytest.mark.parametrize(
    ("race", "text"),
    [
        (
            made_race(stream=0),
            (
                "Let the host wait for the default stream, or for an event recorded there behind the copy, before it "
                "writes, or let it fill another buffer meanwhile."
            ),
        ),
        (
            made_race(device="writes", touch="read", use="copy of a graph", stream=32),
            (
                "Let the host wait for stream 0x20, or for an event recorded there behind the launch of the graph "
                "that has this copy, before it reads."
            ),
        ),
        (
            made_race(device="writes", use="memset", stream=2),
            (
                "Let the host wait for the thread's default stream, or for an event recorded there behind the "
                "memset, before it writes, or give the memset memory of its own."
            ),
        ),
        (
            made_race(touch="free", how="cuMemFreeHost", stream=32),
            (
                "Let the host wait for stream 0x20, or for an event recorded there behind the copy, before it "
                "gives the memory back."
            ),
        ),
        (
            made_race(grade="possible", use="kernel", device="writes", touch="read", stream=32),
            (
                "If the kernel uses this memory, let the host wait for stream 0x20, or for an event recorded there "
                "behind the kernel, before it reads."
            ),
        ),
        (
            made_race(grade="possible", use="copy in a conditional body of a graph", stream=32, touch="read"),
            (
                "If the body runs, let the host wait for stream 0x20, or for an event recorded there behind the launch "
                "of the graph that has this copy, before it reads."
            ),
        ),
        (
            made_race(grade="possible", stream=32, touch="write"),
            (
                "If nothing that hostrace does not know orders them, let the host wait for stream 0x20, or for an "
                "event recorded there behind the copy, before it writes, or let it fill another buffer meanwhile."
            ),
        ),
    ],
)
def test_each_kind_has_a_remedy(race: Race, text: str) -> None:
    assert remedy(race) == text


def test_the_text_says_what_to_do_and_where_the_memory_comes_from(watch: Watch) -> None:
    said = watch("watch.gpu.run_planted", "copy_to_device", "racy", "1").said
    assert "  remedy: Let the host wait for stream 0x" in said
    assert "  pinned at " in said and "driver.py:" in said


def test_sarif_names_the_line_that_touched_as_seen_from_the_root(watch: Watch, tmp_path: Path) -> None:
    file = tmp_path / "races.sarif"
    watch("watch.gpu.run_planted", "copy_to_device", "racy", "1", options=("--sarif", str(file)))
    log = json.loads(file.read_text())
    (run,) = log["runs"]
    (result,) = run["results"]
    (location,) = result["locations"]
    assert (log["version"], result["ruleId"], result["level"]) == ("2.1.0", "race", "error")
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    at = location["physicalLocation"]
    assert at["artifactLocation"] == {"uri": "watch/gpu/planted.py", "uriBaseId": "SRCROOT"}
    lines = Path(__file__).parents[2].joinpath("watch/gpu/planted.py").read_text().splitlines()
    assert lines[at["region"]["startLine"] - 1].strip() == "host[AT] = NEW"
    assert "Let the host wait" in result["message"]["text"]
    assert run["properties"]["verdict"] == "race"


def test_sarif_keeps_a_fingerprint_when_lines_move_and_marks_what_is_suppressed(tmp_path: Path) -> None:
    moved = Stack((Frame("serve.py", 99, "next_step"),), ())
    other = Stack((Frame("serve.py", 99, "another_step"),), ())
    races = (made_race(), made_race(touch_stack=moved), made_race(touch_stack=other))
    report = made_report(races=races, suppressed=[made_race()])
    *found, known = sarif(report, tmp_path)["runs"][0]["results"]
    prints = [result["partialFingerprints"]["hostrace/v1"] for result in found]
    assert prints[0] == prints[1] != prints[2]
    assert known["suppressions"] == [{"kind": "external"}]
    assert not any("suppressions" in result for result in found)


def test_sarif_of_a_race_without_lines_has_no_place(tmp_path: Path) -> None:
    bare = Stack((), (Frame("", None, "", "/bin/a", 77),))
    (result,) = sarif(made_report(races=(made_race(touch_stack=bare, use_stack=bare),)), tmp_path)["runs"][0]["results"]
    assert result["locations"] == result["relatedLocations"] == []


def test_sarif_names_files_of_any_name_by_uris(tmp_path: Path) -> None:
    def uri(file: str) -> dict[str, str]:
        race = made_race(touch_stack=Stack((Frame(file, 63, "next_step"),), ()))
        (result,) = sarif(made_report(races=(race,)), tmp_path)["runs"][0]["results"]
        found: dict[str, str] = result["locations"][0]["physicalLocation"]["artifactLocation"]
        return found

    inside = {"uri": "step%20%231/50%25%3F.py", "uriBaseId": "SRCROOT"}
    assert uri(str(tmp_path / "step #1" / "50%?.py")) == inside
    assert uri("a b:c.py") == {"uri": "a%20b%3Ac.py"}


def compared(folder: Path, before: Report, after: Report, options: Sequence[str] = ()) -> tuple[int, str]:
    names = []
    for name, report in (("before", before), ("after", after)):
        names.append(str(folder / f"{name}.json"))
        (folder / f"{name}.json").write_text(json.dumps(as_json(report)))
    done = CliRunner().invoke(hostrace, [*options, "diff", *names])
    return done.exit_code, done.output


RACE, LUCK = made_race(), made_race(grade="unordered", touch_stack=Stack((Frame("serve.py", 70, "next_step"),), ()))
OTHER = made_race(touch="read", device="writes", touch_stack=Stack((Frame("serve.py", 80, "answer"),), ()))


@pytest.mark.parametrize(
    ("before", "after", "status", "says"),
    [
        (made_report(races=(RACE,)), made_report(), 0, "gone  5 -> 0  write by an instruction of what a copy reads"),
        (made_report(races=(RACE, OTHER)), made_report(unordered=[LUCK]), 1, "still 5 -> 5  write"),
        (made_report(races=(RACE,)), made_report(races=(OTHER,)), 1, "new   0 -> 5  read by an instruction"),
        (made_report(races=(RACE,)), made_report(guarded=0), 2, "nothing was watched after the change"),
        (made_report(), made_report(), 2, "there was no race before it"),
    ],
)
def test_a_change_is_judged_by_the_races_before_and_after_it(
    tmp_path: Path, before: Report, after: Report, status: int, says: str
) -> None:
    done = compared(tmp_path, before, after)
    assert (done[0], says in done[1]) == (status, True), done[1]


def test_a_comparison_names_functions_and_what_was_watched(tmp_path: Path) -> None:
    _, said = compared(tmp_path, made_report(races=(RACE,)), made_report(guarded=60))
    assert "touched in next_step (serve.py), enqueued in ship (serve.py)" in said
    assert "before: 5 races in 6 uses watched in 1 process\nafter: 0 races in 60 uses" in said


def test_options_of_a_run_are_refused_where_nothing_runs(tmp_path: Path) -> None:
    status, said = compared(tmp_path, made_report(), made_report(), ("--hold",))
    assert (status, "takes no options of a run" in said) == (2, True)


def test_a_comparison_has_help() -> None:
    done = CliRunner().invoke(hostrace, ["diff", "-h"])
    assert (done.exit_code, "BEFORE AFTER" in done.output) == (0, True)


UNCOUNTED = {"format": FORMAT, "races": [], "unordered": [], "numbers": {"guarded": "6"}, "processes": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "is no report"),
        ('{"format": 2}', "a report of format 2, and this hostrace reads 3"),
        ("[" * 100_000, "is no report"),
        (json.dumps(UNCOUNTED), "is no report"),
    ],
    ids=["list", "older", "deep", "uncounted"],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    done = CliRunner().invoke(hostrace, ["diff", str(file), str(file)])
    assert (done.exit_code, says in done.output) == (2, True), done.output


@contextmanager
def broken_pipe() -> Iterator[BinaryIO]:
    """The end to write to. Nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        yield pipe


def test_a_comparison_that_standard_output_does_not_take_is_no_race(tmp_path: Path) -> None:
    compared(tmp_path, made_report(races=(RACE,)), made_report())
    command = [*WATCH, "diff", str(tmp_path / "before.json"), str(tmp_path / "after.json")]
    with broken_pipe() as gone, Path("/dev/full").open("wb") as full:
        ended = [subprocess.run(command, stdout=each, stderr=subprocess.PIPE, check=False) for each in (gone, full)]
    assert [each.returncode for each in ended] == [141, 2]
    said = b"Error: standard output cannot be written: No space left on device\n"
    assert [each.stderr for each in ended] == [b"", said]


def test_a_comparison_is_shown_where_standard_output_lacks_its_letters(tmp_path: Path) -> None:
    race = made_race(touch_stack=Stack((Frame("serve.py", 63, "次"),), ()))
    compared(tmp_path, made_report(races=(race,)), made_report())
    command = [*WATCH, "diff", str(tmp_path / "before.json"), str(tmp_path / "after.json")]
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"touched in \u6b21 (serve.py)" in done.stdout


def test_a_page_is_written_whatever_bytes_the_command_has(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "races.html"
    command = [*map(os.fsencode, WATCH), b"--html", os.fsencode(file), b"--", b"true", b"\xff"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert r"true '\udcff'" in unescape(file.read_text())


def test_reports_are_written_where_nobody_reads_standard_error(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "races.json"
    program = [sys.executable, "-m", "watch.gpu.run_planted", "copy_to_device", "racy", "3"]
    with broken_pipe() as gone:
        command = [*WATCH, "--json", str(file), "--", *program]
        done = subprocess.run(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=gone, check=False)
    assert (done.returncode, json.loads(file.read_text())["verdict"]) == (1, "race")
