"""`trtllm-kvfix status` describes a remote tier, and a porter that fails ends the remote tier alone."""

import errno
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from trtllm_kvfix import cli
from trtllm_kvfix.offload import tier_report
from trtllm_kvfix.offload.remote import worker
from trtllm_kvfix.offload.remote.keys import array_of
from trtllm_kvfix.offload.remote.messages import CallOver, Get, Look, Put, Spec, StoreState
from trtllm_kvfix.offload.remote.scheduler import FUSE
from trtllm_kvfix.offload.remote.worker import PorterHandle
from trtllm_kvfix.offload.scheduler import PAUSE_S_MAX
from trtllm_kvfix.overlay import fuse

from .conftest import MakeRemote
from .test_decisions import porter_of, served

SPEC = Spec(-1, -1, 64, 128, 1, 0, 1, "here:1", "tcp", None, 0)


def test_status_says_how_the_store_is(make_remote: MakeRemote) -> None:
    bench = make_remote()
    served(bench, 1)
    folder = Path(os.environ["TRTLLM_KVFIX_RUNTIME_DIR"])
    assert tier_report.live(folder)[0]["remote"] == "up: here"
    porter = porter_of(bench)
    porter.is_up, porter.text = False, "connection refused"
    served(bench, 2)
    said = CliRunner().invoke(cli.main, ["status"], terminal_width=240).output
    assert "rank 0: remote tier down: connection refused" in said


def test_status_says_how_the_segment_is(make_remote: MakeRemote) -> None:
    bench = make_remote(remote_segment_bytes=16 << 20)
    served(bench, 1)
    folder = Path(os.environ["TRTLLM_KVFIX_RUNTIME_DIR"])
    assert tier_report.live(folder)[0]["segment"] == "up: here"
    bench.worker.side.carrier.holder.error = RuntimeError("lost")
    served(bench, 2)
    said = CliRunner().invoke(cli.main, ["status"], terminal_width=240).output
    assert "rank 0: remote tier up: here" in said
    assert "rank 0: remote tier's segment down: its thread ended with lost" in said


def test_the_log_tells_the_segment_from_the_tier(
    make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "PorterHandle", PorterHandle)
    monkeypatch.setattr(PorterHandle, "_supervise", lambda _: None)
    carrier = make_remote(remote_segment_bytes=16 << 20).worker.side.carrier
    caplog.set_level("INFO")
    carrier.porter._note(StoreState(is_up=True, text="here"))
    carrier.holder._note(StoreState(is_up=False, text="no memory"))
    said = [record.getMessage() for record in caplog.records if "remote tier" in record.getMessage()]
    assert said == [
        "the remote tier is up: this node is here to the store",
        "the remote tier's segment is not there, and serving goes on without it: no memory",
    ]


def test_without_its_process_a_porter_is_down_and_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=TypeError("a mistake of ours")))
    porter = PorterHandle(SPEC, 1)
    porter._thread.join(20)
    assert str(porter.error) == "a mistake of ours"
    assert not porter.ask(Get(1, (b"k",), (0,))) and not porter.ask(Put(2, (b"k",), (0,)))
    assert not porter.ask(Look(1, b"", (), 1, array_of([])))
    assert porter.take_answered() == [] and porter.take_found() == []


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def open_files() -> set[str]:
    found: set[str] = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(str(each.readlink()))
    return found


@pytest.mark.parametrize("failing", [(subprocess, "Popen"), (socket, "socketpair")])
def test_a_process_that_cannot_be_started_now_is_tried_again(
    failing: tuple[Any, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors, tried_again, ends = ["no more processes"], Event(), set[str]()
    make_pair = socket.socketpair

    def pair() -> tuple[socket.socket, socket.socket]:
        made = make_pair()
        ends.update(f"socket:[{os.fstat(end.fileno()).st_ino}]" for end in made)
        return made

    def start(*_: Any, **__: Any) -> Any:
        if errors:
            raise OSError(errno.EAGAIN, errors.pop())
        tried_again.set()
        raise OSError(errno.EAGAIN, "still none")

    monkeypatch.setattr(socket, "socketpair", pair)
    monkeypatch.setattr(*failing, start)
    monkeypatch.setattr(worker, "PAUSE_S_MIN", 0.0)
    porter = PorterHandle(SPEC, 1)
    assert tried_again.wait(20)
    assert porter.close(20)
    assert porter.error is None and not porter.is_up
    assert "no more processes" in caplog.text
    assert bool(ends) == (failing[1] == "Popen") and ends.isdisjoint(open_files())


def test_a_process_is_ended_and_started_again_where_no_thread_is_left_to_write_to_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processes: list[Mock] = []
    tried_again, start = Event(), Thread.start

    def popen(*_: Any, **__: Any) -> Mock:
        processes.append(Mock())
        if len(processes) == 2:
            tried_again.set()
        return processes[-1]

    def start_others(thread: Thread) -> None:
        if thread.name == "kvfix-porter-out":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(Thread, "start", start_others)
    monkeypatch.setattr(worker, "PAUSE_S_MIN", 0.0)
    porter = PorterHandle(SPEC, 1)
    assert tried_again.wait(20)
    assert porter.close(20)
    assert porter.error is None and "can't start new thread" in caplog.text
    assert all(each.kill.called and each.wait.called for each in processes)


class Closing:
    """Closes when it has waited so often."""

    def __init__(self, waits_max: int) -> None:
        self.waited_s: list[float] = []
        self._waits_max = waits_max

    def is_set(self) -> bool:
        return len(self.waited_s) == self._waits_max

    def wait(self, wait_s: float) -> None:
        self.waited_s.append(wait_s)


def test_pauses_grow_to_a_minute_and_are_short_again_behind_a_process_that_has_lived_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, lives_s = Clock(), [0.0] * 8 + [PAUSE_S_MAX + 1, 0.0]
    with monkeypatch.context() as patch:
        patch.setattr(PorterHandle, "_supervise", lambda _: None)
        porter = PorterHandle(SPEC, timeout_s=10)

    def live(_: PorterHandle) -> None:
        clock.now += lives_s.pop(0)

    monkeypatch.setattr(worker, "monotonic", clock)
    monkeypatch.setattr(PorterHandle, "_live_once", live)
    porter._closing = closing = Closing(len(lives_s))  # type: ignore[assignment]
    porter._supervise()
    assert closing.waited_s == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]


@pytest.mark.parametrize("kind", [Put, Get])
def test_a_porter_is_ended_when_no_call_ends_and_not_because_much_was_asked_of_it(
    kind: type[Put | Get], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, process = Clock(), Mock()
    monkeypatch.setattr(PorterHandle, "_supervise", lambda _: None)
    monkeypatch.setattr(worker, "monotonic", clock)
    porter = PorterHandle(SPEC, timeout_s=10)
    porter.is_up, porter._process = True, process
    other = Get if kind is Put else Put
    for number in range(1, 9):
        assert porter.ask(kind(number, (b"k",), (0,)))
    for _ in range(6):
        clock.now += 9
        porter._hear(CallOver(kind.__name__), process)
        porter.end_if_stuck()
    assert not process.kill.called, "it has worked for 54 s"
    clock.now += 9
    porter._hear(CallOver(other.__name__), process)
    porter.end_if_stuck()
    assert not process.kill.called
    clock.now += 2
    porter._hear(CallOver(other.__name__), process)
    porter.end_if_stuck()
    assert process.kill.called, "calls of another kind have a thread of their own"
    assert porter.close(10)


def test_an_idle_porter_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, process = Clock(), Mock()
    monkeypatch.setattr(PorterHandle, "_supervise", lambda _: None)
    monkeypatch.setattr(worker, "monotonic", clock)
    porter = PorterHandle(SPEC, timeout_s=10)
    porter.is_up, porter._process = True, process
    clock.now += 1000
    porter.end_if_stuck()
    assert porter.ask(Put(1, (b"k",), (0,)))
    clock.now += 9
    porter.end_if_stuck()
    assert not process.kill.called
    clock.now += 2
    porter.end_if_stuck()
    assert process.kill.called
    assert porter.close(10)


def test_a_fault_of_the_porters_thread_ends_the_remote_tier_alone(
    make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse, "_fuses", {})
    bench = make_remote()
    porter_of(bench).error = RuntimeError("lost")  # type: ignore[assignment]
    porter_of(bench).is_up = False
    assert served(bench, 1) == 0
    assert fuse.of(FUSE).blown
    assert served(bench, 1) == 44, "from the host tier"
