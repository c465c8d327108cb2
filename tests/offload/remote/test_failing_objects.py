"""One object of the store cannot be read, and everything else can."""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from tests.offload.conftest import Clock
from tests.offload.ends import jobs
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import FreeJob
from trtllm_kvfix.offload.remote import scheduler
from trtllm_kvfix.offload.remote.keys import array_of, keys_behind, object_name
from trtllm_kvfix.offload.remote.messages import Get, Outcome, Outcomes, Put, Spec
from trtllm_kvfix.offload.remote.worker import PorterHandle

from .conftest import MakeRemote
from .porter_double import Key
from .test_decisions import BEHIND, PROMPT, porter_of, served, settle, stored

OTHER = [9, *PROMPT[1:]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(scheduler, "monotonic", clock)
    return clock


def test_a_block_whose_read_fails_costs_what_follows_it_and_nothing_else(
    make_remote: MakeRemote, memory: dict[Key, bytes]
) -> None:
    first = make_remote()
    served(first, 1)
    settle(first)
    failing = list(memory)[6]
    served(first, 2, OTHER)
    settle(first)
    bench, porter = (made := make_remote(32)), porter_of(made)
    porter.failing.add(failing)
    come = counters.offload_remote_hit_tokens.value
    assert served(bench, 1) == BEHIND, "promised"
    assert counters.offload_remote_hit_tokens.value - come == 6 * 4
    for number in range(2, 12):  # others use every slot but those that are still written
        porter.write_late()
        served(bench, number, [number, *PROMPT])
        porter.write_late()
    assert served(bench, 12, OTHER) == BEHIND and bench.executor.corrupt == []
    assert jobs(bench.scheduler.side.ledger, FreeJob), "nothing else waits for the process to end"
    porter.begin_anew()
    settle(bench)


def test_a_block_whose_read_has_failed_is_asked_for_again_later(
    make_remote: MakeRemote, memory: dict[Key, bytes], clock: Clock
) -> None:
    stored(make_remote)
    bench, porter = (made := make_remote()), porter_of(made)
    porter.failing.add(next(iter(memory)))

    def fetched() -> bool:
        before = counters.offload_remote_hit_tokens.value
        bench.index.drop()
        served(bench, 1)
        return counters.offload_remote_hit_tokens.value > before

    assert not fetched()
    porter.failing.clear()
    assert not fetched(), "nobody asks, as it may fail for long"
    clock.now += scheduler.AVOIDED_S + 1
    assert fetched()
    porter.begin_anew()
    settle(bench)


# Of Mooncake, as much as a porter needs. Objects are files, and who is to fail is named by another file.
STORE = """
import ctypes, signal
from pathlib import Path
HERE = Path(__file__).parents[1] / "objects"

class MooncakeDistributedStore:
    def setup(self, *_):
        return 0
    def register_buffer(self, *_):
        return 0
    def batch_is_exist(self, names):
        return [int(self.at(name).exists()) for name in names]
    def batch_put_from(self, names, addresses, sizes):
        for name, address, size in zip(names, addresses, sizes):
            self.at(name).write_bytes(ctypes.string_at(address, size))
        return [0] * len(names)
    def batch_get_into(self, names, addresses, sizes):
        return [self.get(*each) for each in zip(names, addresses, sizes)]
    def remove(self, name, force):
        self.at(name).unlink()
    def at(self, name):
        return HERE / name.replace("/", "_")
    def get(self, name, address, size):
        if self.at(name).with_suffix(".fails").exists():
            return -800
        if self.at(name).with_suffix(".hangs").exists():
            signal.pause()
        content = self.at(name).read_bytes()
        if len(content) > size:
            return -600
        ctypes.memmove(address, content, len(content))
        return len(content)
"""
BLOCK_BYTES, SLOT_BYTES, SLOTS = 4096, 4096 + 64, 8
KEYS = tuple(keys_behind(b"start", 0, array_of(range(8)), 2, ()))
WITHIN_S = 30


def until(condition: Callable[[], object]) -> None:
    over, end = Event(), monotonic() + WITHIN_S
    while not condition():
        assert monotonic() < end
        over.wait(0.002)


class RealPorter:
    """A porter's process, whose store holds blocks that lie in slots 0 to 3."""

    def __init__(self, objects: Path, timeout_s: float) -> None:
        self._objects = objects
        pool = os.memfd_create("pool")
        os.ftruncate(pool, SLOTS * SLOT_BYTES)
        self.slots = mmap.mmap(pool, 0)
        for slot in range(4):
            self.slots[slot * SLOT_BYTES : slot * SLOT_BYTES + BLOCK_BYTES] = bytes([slot + 1]) * BLOCK_BYTES
        spec = Spec(-1, pool, BLOCK_BYTES, SLOT_BYTES, SLOTS, 0, 1, "", "tcp", "127.0.0.1", 0)
        self.handle = PorterHandle(spec, timeout_s)
        self._pool = pool
        self._numbers = iter(range(1, 1000))
        assert self.ask(Put, (0, 1, 2, 3)) == (Outcome.WHOLE,) * 4

    def path_of(self, at: int) -> Path:
        return self._objects / object_name(KEYS[at], 0, 1).replace("/", "_")

    def ask(self, kind: type[Put | Get], slots: tuple[int, ...], first: int = 0) -> tuple[Outcome, ...]:
        number = next(self._numbers)
        until(lambda: self.handle.ask(kind(number, KEYS[first : first + len(slots)], slots)))
        answered: list[tuple[object, Outcomes]] = []

        def has_come() -> bool:
            self.handle.end_if_stuck()
            answered.extend(self.handle.take_answered())
            return bool(answered)

        until(has_come)
        assert not answered[0][1].error, answered[0][1].error
        return answered[0][1].outcomes

    def gone(self, slots: tuple[int, ...]) -> bool:
        """Whether nobody writes these slots any more."""
        self.handle.note_gone(next(self._numbers), slots)
        return bool(self.handle.take_gone())

    def close(self) -> None:
        assert self.handle.close(WITHIN_S)
        os.close(self._pool)


@pytest.fixture
def make_porter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], RealPorter]]:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "objects").mkdir()
    (tmp_path / "mooncake" / "store.py").write_text(STORE)
    monkeypatch.syspath_prepend(tmp_path)
    with ExitStack() as made:

        def make(timeout_s: float) -> RealPorter:
            porter = RealPorter(tmp_path / "objects", timeout_s)
            made.callback(porter.close)
            return porter

        yield make


def test_objects_that_fail_or_have_another_length_leave_the_porter_as_it_is(
    make_porter: Callable[[float], RealPorter],
) -> None:
    porter = make_porter(60)
    content = porter.path_of(1).read_bytes()
    porter.path_of(1).write_bytes(content[:-1])
    porter.path_of(2).write_bytes(content * 2)
    assert porter.ask(Get, (4, 5, 6, 7)) == (Outcome.WHOLE, Outcome.BAD, Outcome.BAD, Outcome.WHOLE)
    until(lambda: not porter.path_of(1).exists() and not porter.path_of(2).exists())
    porter.path_of(3).with_suffix(".fails").touch()
    for _ in range(3):
        assert porter.ask(Get, (7,), 3) == (Outcome.FAILED,)
        assert porter.ask(Get, (4,)) == (Outcome.WHOLE,)
    assert porter.handle.starts == 1
    assert porter.gone((4,)) and not porter.gone((4, 7))


def test_many_slots_that_may_still_be_written_end_the_process(make_porter: Callable[[float], RealPorter]) -> None:
    porter = make_porter(60)
    for at in (2, 3):
        porter.path_of(at).with_suffix(".fails").touch()
    assert porter.ask(Get, (6,), 2) == (Outcome.FAILED,)
    assert not porter.gone((6,))
    with pytest.raises(AssertionError, match="has ended"):
        porter.ask(Get, (7,), 3)
    assert porter.gone((6, 7)) and porter.ask(Get, (4, 5)) == (Outcome.WHOLE,) * 2


def test_a_read_without_an_end_is_named_by_its_answer(make_porter: Callable[[float], RealPorter]) -> None:
    porter = make_porter(0.5)
    porter.path_of(2).with_suffix(".hangs").touch()
    assert porter.ask(Get, (5, 6), 1) == (Outcome.FAILED,) * 2
    assert porter.gone((5, 6)) and porter.ask(Get, (4,)) == (Outcome.WHOLE,)
    assert porter.handle.starts == 2


def test_a_wait_for_its_word_ends_when_it_comes(make_porter: Callable[[float], RealPorter]) -> None:
    handle, began = make_porter(60).handle, monotonic()
    handle.wait_for_word(WITHIN_S)  # nothing is asked
    assert handle.ask(Get(99, KEYS[:1], (4,)))
    while not handle.take_answered():
        handle.wait_for_word(WITHIN_S)
    assert monotonic() - began < WITHIN_S
