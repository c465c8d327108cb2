"""Where CI is set, nothing is skipped that is not listed here: a suite that a broken build skips must not be green.

A pytest plugin for tests/ and integration/. At the end of a run it says what was skipped, and why that may be.
"""

import os
from collections import Counter
from collections.abc import Generator
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

import pytest


class Allowed(NamedTuple):
    """A skip that CI accepts, because it depends on the machine or on nothing at all."""

    files: str  # a pattern
    says: str  # a part of the reason with which the test is skipped
    why: str


ALLOWED = (
    Allowed("tests/bound/test_bound.py", "not bound in this era", "no era binds every method"),
    Allowed("tests/docs/test_examples.py", "could not import 'zmq'", "not every Python has a wheel of ZeroMQ"),
    Allowed("tests/events/*.py", "could not import 'zmq'", "not every Python has a wheel of ZeroMQ"),
    Allowed("tests/events/*.py", "could not import 'msgspec'", "not every Python has a wheel of msgspec"),
    Allowed("tests/test_examples.py", "needs systemd", "containers have none"),
    Allowed("tests/tools/bench/*.py", "matplotlib is an extra", "`make test-py` alone does not install that extra"),
    Allowed("tests/tools/replay/*.py", "could not import 'matplotlib'", "`make test-py` alone does not install it"),
    Allowed("tests/watch/test_*.py", "needs x86-64", "elsewhere QEMU runs hostrace in C++ alone"),
    Allowed("watch/tests/test_*.py", "needs x86-64", "elsewhere QEMU runs hostrace in C++ alone"),
    Allowed("watch/tests/test_harm.py", "another user", "the tests may run as any user, anywhere"),
    Allowed("watch/tests/test_orders.py", "no large pages", "the machine has to set them aside; a double has them"),
    Allowed("watch/tests/test_harm.py", "no Rust compiler", "`make test` needs none"),
    Allowed("watch/tests/test_harm.py", "no Go compiler", "`make test` needs none"),
    Allowed("watch/tests/test_harm.py", "no Java compiler", "`make test` needs none"),
    Allowed("watch/tests/test_frames_of_python.py", "is not in the path", "the one that runs the tests is always read"),
    # Not part of `make ci`:
    Allowed("integration/clients/test_clients.py", "a tree of upstream is there", "this test says that there is none"),
    Allowed("integration/clients/test_clients.py", "set KVFIX_UPSTREAM", "upstream's source is not ours to carry"),
    Allowed("integration/gpu/test_offload_tp2.py", "no second CUDA device", "most machines have one GPU"),
    Allowed("integration/upstream/test_*.py", "excerpts", "upstream's source is not ours to carry"),
    Allowed("integration/upstream/test_upstream.py", "a tree is there", "this test says that there is none"),
    Allowed("integration/upstream/test_upstream.py", "set UPSTREAM", "upstream's source is not ours to carry"),
)
CI = bool(os.environ.get("CI"))
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return judged(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return judged(report)


def judged(report: Report) -> Report:
    if not report.skipped or not CI:
        return report
    _, says, why = looked_up(report)
    if why is None:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped where CI is set: {says}\nEither this machine lacks what CI promises or the "
            "build is broken. If the test may be skipped here, ALLOWED in tests/skips.py wants an entry that says why."
        )
    return report


def looked_up(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str | None]:
    """The skipped file, the reason that it gives, and why that is allowed."""
    says = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    says = says.removeprefix("Skipped: ")
    file = report.nodeid.partition("::")[0]
    return file, says, next((a.why for a in ALLOWED if fnmatchcase(file, a.files) and a.says in says), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Counts reports, because with several processes this one has run no test itself."""
    skipped = terminalreporter.stats.get("skipped", []) if CI else []
    if skips := Counter(map(looked_up, skipped)):
        terminalreporter.section("skipped, as tests/skips.py allows")
        for (file, says, why), times in sorted(skips.items(), key=lambda item: item[0][:2]):
            terminalreporter.write_line(f"[{times}] {file}: {says} ({why})")
