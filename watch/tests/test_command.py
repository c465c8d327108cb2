"""The command line of hostrace by itself: what it refuses before anything runs, and how an interrupt ends it."""

import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from hostrace import __version__, launch
from hostrace.command import watch


def test_version_is_the_packages() -> None:
    assert CliRunner().invoke(watch, ["--version"]).output == f"hostrace, version {__version__}\n"


def test_a_limit_that_is_no_number_is_refused() -> None:
    done = CliRunner().invoke(watch, ["--hold-limit", "nan", "--", "true"])
    assert (done.exit_code, "nan is not a number" in done.stderr) == (2, True)


def test_an_option_that_is_misspelt_is_no_command() -> None:
    done = CliRunner().invoke(watch, ["--only-observd", "--", "true"])
    assert done.exit_code == 2 and "No such option" in done.stderr and "--only-observd" in done.stderr


def test_options_behind_the_command_are_the_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], _: object) -> int:
        ran.append(command)
        return 0

    monkeypatch.setattr(launch, "prepared", lambda *_: (tmp_path, {}))
    monkeypatch.setattr(launch, "run", run)
    for separator in ([], ["--"]):
        CliRunner().invoke(watch, ["--hold", *separator, "sh", "-c", "true", "--hold", "--help"])
    assert ran == 2 * [("sh", "-c", "true", "--hold", "--help")]


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_report_without_a_folder_is_refused_before_the_command_runs(option: str, tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "report"
    done = CliRunner().invoke(watch, [option, str(file), "--", "touch", str(tmp_path / "ran")])
    assert (done.exit_code, done.stderr) == (
        2,
        f"Error: {option} is '{file}': there is no folder {file.parent}\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_suppressions_that_are_no_text_are_refused_before_the_command_runs(tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_bytes(b"\xff\xfe")
    done = CliRunner().invoke(watch, ["--suppress", str(known), "--", "touch", str(tmp_path / "ran")])
    assert (done.exit_code, done.stderr.startswith(f"Error: {known} cannot be read: ")) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == [known]


@pytest.mark.parametrize("folder", ["my tools", "a:b"])
def test_a_library_that_cannot_be_preloaded_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("/opt") / folder / launch.LIBRARY
    monkeypatch.setattr(launch, "library", lambda: path)
    done = CliRunner().invoke(watch, ["--", "true"])
    assert (done.exit_code, done.stderr.startswith(f"Error: {path} has a space or a colon")) == (2, True), done.stderr


def test_an_interrupt_before_the_command_runs_is_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "prepared", interrupted)
    done = CliRunner().invoke(watch, ["--", "true"])
    assert (done.exit_code, done.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_what_a_terminal_sends_is_the_commands(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that answers ctrl-\\ with its threads runs on, and hostrace stays for its report."""
    seen = []

    class Child:
        def __init__(self, *_: object, **__: object) -> None:
            self.before = signal.getsignal(number)  # as it is passed on

        def wait(self) -> int:
            seen.append((self.before, signal.getsignal(number)))
            return 3

    monkeypatch.setattr(subprocess, "Popen", Child)
    before = signal.getsignal(number)
    assert launch.run(["serve"], {}) == 3
    assert seen == [(before, signal.SIG_IGN)]
    assert signal.getsignal(number) == before
