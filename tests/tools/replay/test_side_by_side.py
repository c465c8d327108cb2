"""Replays in processes of their own count what they count here, and ctrl-C reaches them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.tools.replay import runs as runs_module
from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Workload
from trtllm_kvfix.tools.replay.outcome import HostTierKind
from trtllm_kvfix.tools.replay.runs import (
    WORTH_A_PROCESS,
    Result,
    Run,
    SideBySide,
    execute,
    jobs_for,
    sweep,
    usable_cores,
)

from .shapes import cold, tiny_workload, workload


def counted(result: Result) -> list[dict[str, object]]:
    assert not result.partial
    return [outcome.model_dump(exclude={"elapsed_s"}) for outcome in result.outcomes]


@pytest.mark.parametrize("kind", list(HostTierKind))
def test_processes_count_what_one_process_counts(kind: HostTierKind) -> None:
    made = generate("chat", 0)
    runs = sweep(made.shape.model_copy(update={"host_tier": kind, "blocks_primary": 512}), [0, 64, 4096])
    progress: list[int] = []
    assert counted(execute(made.workload, runs, progress.append, jobs=2)) == counted(
        execute(made.workload, runs, print)
    )
    assert progress == sorted(progress)


def tunables(_workload: Workload) -> str | None:
    return os.environ.get("GLIBC_TUNABLES")


@pytest.mark.parametrize("chosen", [None, "glibc.malloc.check=0"])
def test_processes_ask_for_large_pages_unless_the_user_has_chosen(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", chosen)
    with SideBySide(tiny_workload(), sweep(generate("small", 0).shape, [0, 10]), jobs=2) as side:
        assert side.ask(tunables).result() == (chosen or "glibc.malloc.hugetlb=1")
    assert os.environ.get("GLIBC_TUNABLES") == chosen


def test_a_workload_of_both_kinds_of_requests_arrives_whole() -> None:
    tiny = tiny_workload()
    runs = sweep(generate("small", 0).shape, [0, 10])
    assert counted(execute(tiny, runs, print, jobs=2)) == counted(execute(tiny, runs, print))


def test_what_a_process_refuses_is_the_error_of_all() -> None:
    made = generate("small", 0)
    bad = [Run(made.shape), Run(made.shape.model_copy(update={"max_num_tokens": 1}))]
    with pytest.raises(SettingsError, match="max_num_tokens is 1"):
        execute(made.workload, bad, print, jobs=2)


class Deadly:
    """A run that ends its process as the kernel does when memory is short."""

    shape = generate("small", 0).shape

    def __iter__(self) -> Iterator[object]:
        signal.raise_signal(signal.SIGKILL)
        return iter(())


def test_a_process_that_was_killed_is_named() -> None:
    made = generate("small", 0)
    deadly: Any = Deadly()
    killed = pytest.raises(KvfixError, match="was killed, usually for lack of memory: --jobs below 2")
    with SideBySide(made.workload, [deadly, Run(made.shape)], 2) as side, killed:
        side.outcomes(print)


def test_small_workloads_are_not_worth_a_process() -> None:
    assert jobs_for(tiny_workload()) == 1
    assert jobs_for(workload([cold(1, 2)] * WORTH_A_PROCESS)) == usable_cores()


def test_a_stopped_process_says_what_it_counted_and_begins_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "PROGRESS_S", 0.001)
    tokens = np.arange(40, dtype=np.int32)
    endless = workload([cold(1, 40)._replace(tokens=tokens, output_length=2) for _ in range(5_000)])
    shape = generate("small", 0).shape.model_copy(update={"iteration_ms": 0})
    with SideBySide(endless, sweep(shape, range(8)), 1) as side:
        begun: list[int] = []

        def stop(finished: int) -> None:
            begun.append(finished)
            if finished:
                side.stop()

        outcomes = side.outcomes(stop)
    assert begun[-1] > 0
    assert len(outcomes) < 8
    assert all(outcome.shape.blocks_host for outcome in outcomes), "the shortest run, without a host tier, begins last"
    assert all(outcome.partial for outcome in outcomes if outcome.requests.finished < 5_000)


def test_a_question_that_waits_is_not_answered_after_ctrl_c() -> None:
    """The limits of a long trace take seconds, and a partial report has none."""
    made = generate("small", 0)
    with SideBySide(made.workload, [Run(made.shape)], 1) as side:
        side.stop()
        assert isinstance(side.ask(len).exception(), KeyboardInterrupt)


INTERRUPTED = """
import os, signal
from trtllm_kvfix.tools.replay import runs
from trtllm_kvfix.tools.replay.runs import SideBySide

runs.PROGRESS_S = 0.001

def pressed_once(self, on_finished):
    def press(finished):
        if finished:
            SideBySide.outcomes = honest
            os.killpg(0, signal.SIGINT)  # as a terminal does: the whole group hears it
    return honest(self, press)

honest, SideBySide.outcomes = SideBySide.outcomes, pressed_once
# A parent that runs in the background ignores ctrl-C, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
from trtllm_kvfix.cli import main
main()  # without asking for __name__: no process imports this
"""


def test_ctrl_c_in_a_terminal_prints_what_all_have_counted(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"tokens": [1, 2, 3], "output_length": 2}\n' * 20_000)
    command = [sys.executable, str(script), "replay", str(trace), "--sweep", "0,1,2,3", "--jobs", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, start_new_session=True)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    assert report["partial"]
    finished = [outcome["requests"]["finished"] for outcome in report["outcomes"]]
    assert 0 < sum(finished) < 4 * 20_000
    assert all(outcome["partial"] for outcome in report["outcomes"] if outcome["requests"]["finished"] < 20_000)


def test_one_run_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(runs_module, "SideBySide")
    made = generate("small", 0)
    assert not execute(made.workload, [Run(made.shape)], print, jobs=8).partial
