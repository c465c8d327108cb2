"""`pytest --hostrace`: a test fails if the host touched pinned memory during it that the device still used.

The library has to be in the process from its start, so pytest starts itself once more with it. Other modules of ours
are imported where they are used: pytest loads this one wherever the package is installed.
"""

import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ENV_OWNER = "HOSTRACE_PYTEST"  # the process that removes the folder


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hostrace", "races of the host with the device")
    group.addoption("--hostrace", action="store_true", help="fail tests that touch pinned memory in use by a GPU")
    group.addoption("--hostrace-suppress", type=Path, metavar="FILE", help="known races, as for `hostrace --suppress`")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if not config.getoption("hostrace"):
        return
    from hostrace import launch, suppressions  # noqa: PLC0415
    from hostrace.errors import HostraceError  # noqa: PLC0415

    if os.environ.get(launch.ENV_FOLDER):
        return
    try:
        if known := config.getoption("hostrace_suppress"):
            suppressions.load(known)  # what is wrong with it ends this before anything is made
        _, environ = launch.prepared(None)
    except HostraceError as error:
        raise pytest.UsageError(f"--hostrace: {error}") from error
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()  # its files end with this program
    sys.stdout.flush()
    os.execve(sys.executable, sys.orig_argv, {**environ, ENV_OWNER: str(os.getpid())})


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("hostrace"):
        return
    from hostrace import launch, suppressions  # noqa: PLC0415

    if folder := os.environ.get(launch.ENV_FOLDER):
        known = config.getoption("hostrace_suppress")
        owned = os.environ.get(ENV_OWNER) == str(os.getpid())
        watching = Watching(Path(folder), suppressions.load(known) if known else [], owned)
        config.pluginmanager.register(watching)


class Watching:
    """Compares the races seen before each test with those seen after it, child processes included."""

    def __init__(self, folder: Path, known: list[Any], owned: bool) -> None:
        self.folder = folder
        self.known = known
        self.owned = owned
        self.symbols: Any = None

    def pytest_unconfigure(self) -> None:
        if self.owned:
            shutil.rmtree(self.folder, ignore_errors=True)

    def seen(self) -> dict[tuple[object, ...], Any]:
        from hostrace import races, suppressions, symbols  # noqa: PLC0415

        self.symbols = self.symbols or symbols.Symbols()
        found = races.merged(races.read(self.folder))
        self.symbols.name(found)
        kept, _ = suppressions.split(found, self.known)
        return {race.key: race for race in kept if race.grade != "possible"}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        from hostrace.report import race_lines  # noqa: PLC0415

        before = {key: race.times for key, race in self.seen().items()}
        yield
        new = [race for key, race in self.seen().items() if race.times > before.get(key, 0)]
        if new:
            text = [
                line
                for number, race in enumerate(new, 1)
                for line in race_lines(f"{race.grade.upper()} {number}", race)
            ]
            pytest.fail("\n".join(text), pytrace=False)
