"""Native frames have function, file and line where the program has debug information, and say why where not."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hostrace import symbols
from hostrace.races import Frame, Stack
from hostrace.symbols import answers, demangled
from watch.tests.conftest import LIMIT_S, WATCH, compiler
from watch.tests.made import made_race

SOURCE = Path(__file__).with_name("racy.cc")
HERE = [tool for tool in symbols.TOOLS if shutil.which(tool[0])]


def line_of(mark: str) -> int:
    (found,) = [at for at, line in enumerate(SOURCE.read_text().splitlines(), 1) if line.endswith(f"// {mark}")]
    return found


def race_of(environ: dict[str, str], folder: Path, *flags: str, **more: str) -> tuple[dict[str, Any], str]:
    program, report = folder / "racy", folder / "report.json"
    subprocess.run([compiler(), "-std=c++20", *flags, "-o", program, SOURCE, "-ldl"], check=True)
    done = subprocess.run(
        [*WATCH, "--json", str(report), "--", "./racy"],
        env={**environ, **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    (race,) = json.loads(report.read_text())["races"]
    return race, done.stderr


def places(stack: dict[str, Any]) -> list[tuple[str, int]]:
    return [(frame["function"], frame["line"]) for frame in stack["native"] if frame["file"] == str(SOURCE)]


@pytest.mark.parametrize("flags", [("-fPIE", "-pie"), ("-no-pie",)], ids=["pie", "fixed"])
@pytest.mark.parametrize("tool", HERE, ids=lambda tool: tool[0])
def test_each_frame_of_c_plus_plus_has_its_line(
    environ: dict[str, str], tmp_path: Path, tool: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    (path / tool[0]).symlink_to(str(shutil.which(tool[0])))
    # DWARF 5 is too new for some of the tools that users have.
    race, said = race_of(environ, tmp_path, "-g", "-gdwarf-4", "-O1", *flags, PATH=str(path))
    touched = places(race["touch_stack"])
    assert touched[:2] == [
        ("app::Server::fill(char)", line_of("touches")),
        ("app::Server::next_step()", line_of("calls")),
    ]
    assert ("app::Server::ship()", line_of("enqueues")) in places(race["use_stack"])
    assert line_of("pins") in {line for _, line in places(race["pinned_stack"])}
    assert f"{SOURCE}:{line_of('touches')} in app::Server::fill(char) ({tmp_path}/racy+0x" in said
    assert "pinned at " in said


def test_without_a_tool_the_frames_stay_and_the_report_says_what_to_install(
    environ: dict[str, str], tmp_path: Path
) -> None:
    race, said = race_of(environ, tmp_path, "-g", "-rdynamic", "-O1", PATH=str(tmp_path))
    assert all(frame["line"] is None for frame in race["touch_stack"]["native"])
    assert symbols.CURE in said
    assert race["touch_stack"]["native"][0]["module"] == str(tmp_path / "racy")
    assert race["touch_stack"]["native"][0]["function"] == "app::Server::next_step()"


def test_a_tool_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "addr2line"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(symbols, "TOOLS", (("addr2line",),))
    monkeypatch.setattr(symbols, "LIMIT_S", 0.05)
    shell = Frame("", None, "_Z1fv", str(shutil.which("sh")), 17)
    race = made_race(use_stack=Stack((), (shell,)))
    found = symbols.Symbols()
    found.name([race])
    assert race.use_stack.native == (replace(shell, function="f()"),)
    assert [note.endswith("took more than 0 s") for note in found.notes] == [True]


def test_answers_of_the_tools_are_read() -> None:
    text = "0x10\nf(int)\n/a/b.cc:3 (discriminator 2)\ng()\n/a/b.cc:9\n0x0000000000000020\n??\n??:0\n0x30\nh\n??:?\n"
    assert list(answers(text)) == [
        (16, [("f(int)", "/a/b.cc", 3), ("g()", "/a/b.cc", 9)]),
        (32, []),
        (48, [("h", "", None)]),
    ]


@pytest.mark.parametrize(
    ("symbol", "name"), [("_ZN3app4fillEc", "app::fill(char)"), ("main", "main"), ("_Znonsense", "_Znonsense")]
)
def test_names_are_as_the_source_has_them(symbol: str, name: str) -> None:
    assert demangled(symbol) == name


def test_the_program_is_named_by_its_path_and_not_by_its_call(environ: dict[str, str], tmp_path: Path) -> None:
    race, _ = race_of(environ, tmp_path)
    assert {frame["module"] for frame in race["touch_stack"]["native"]} >= {str(tmp_path / "racy")}
