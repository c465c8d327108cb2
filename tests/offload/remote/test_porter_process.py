"""The process that has the store's client, in this one, on a store that is a dict."""

import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from trtllm_kvfix.native import crc32c
from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.remote import porter_process
from trtllm_kvfix.offload.remote.keys import array_of, keys_behind, object_name
from trtllm_kvfix.offload.remote.messages import (
    CallOver,
    Get,
    Look,
    LookAnswer,
    Message,
    Outcome,
    Outcomes,
    Put,
    Reply,
    Spec,
)

BLOCK_BYTES, SLOT_BYTES, SLOTS = 4096, 4096 + 64, 8
TOKENS = array_of(range(8))
KEYS = tuple(keys_behind(b"start", 0, TOKENS, 2, ()))
HERE, THERE = (0, 1, 2, 3), (4, 7, 5, 6)
NICE_MAX = 19
WHOLE = (Outcome.WHOLE,) * 4


class DictStore:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails_for: set[str] = set()
        self.nice: dict[str, int] = {}  # of the thread that called
        self.calls: list[tuple[str, int]] = []  # with so many objects
        self.changed = threading.Condition()

    def register(self, address: int, nbytes: int) -> None:
        """All memory is."""

    def exist(self, names: Sequence[str]) -> list[bool]:
        self._note("exist", len(names))
        return [name in self.objects for name in names]

    def put(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        self._note("put", len(names))
        for name, address in zip(names, addresses, strict=True):
            self.objects[name] = ctypes.string_at(address, nbytes)
        return [Outcome.WHOLE] * len(names)

    def get(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        self._note("get", len(names))
        if not self.fails_for.isdisjoint(names):
            raise OSError("gone")
        for name, address in zip(names, addresses, strict=True):
            if name in self.objects:
                ctypes.memmove(address, self.objects[name], nbytes)
        return [Outcome.WHOLE if name in self.objects else Outcome.MISSING for name in names]

    def remove(self, names: Sequence[str]) -> None:
        with self.changed:
            for name in names:
                del self.objects[name]
            self.changed.notify_all()

    def _note(self, call: str, objects: int) -> None:
        self.calls.append((call, objects))
        self.nice[call] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


class Bench:
    """Slots `HERE` are full of noise, `THERE` are empty."""

    def __init__(self) -> None:
        pool = os.memfd_create("pool")
        os.ftruncate(pool, SLOTS * SLOT_BYTES)
        self.slots = np.frombuffer(mmap.mmap(pool, 0), np.uint8).reshape(SLOTS, SLOT_BYTES)[:, :BLOCK_BYTES]
        self.slots[: len(HERE)] = np.random.default_rng(1).integers(0, 256, (len(HERE), BLOCK_BYTES), dtype=np.uint8)
        self.store = DictStore()
        ours, theirs = socket.socketpair()
        self._connection, connection = Connection(ours.detach()), Connection(theirs.detach())
        spec = Spec(-1, pool, BLOCK_BYTES, SLOT_BYTES, SLOTS, 0, 1, "", "tcp", None, 0)
        porter = porter_process.PorterProcess(spec, connection, self.store)
        os.close(pool)
        self.progress: list[str] = []
        self._thread = threading.Thread(target=porter.run)
        self._thread.start()

    def answer(self, message: Message) -> tuple[Outcome, ...]:
        answer = self.reply(message)
        assert not answer.error
        return answer.outcomes

    def reply(self, message: Message) -> Outcomes:
        self.send(message)
        return self.next_answer()

    def send(self, message: Message) -> None:
        self._connection.send(message)

    def next_answer(self) -> Outcomes:
        reply = self._next()
        assert isinstance(reply, Outcomes)
        return reply

    def found(self, number: int) -> int:
        """How many of `KEYS` the store has."""
        self.send(Look(number, b"start", (), 2, TOKENS))
        reply = self._next()
        assert isinstance(reply, LookAnswer) and (reply.number, reply.keys, reply.error) == (number, b"".join(KEYS), "")
        return reply.blocks

    def do_all(self) -> None:
        """A message of each kind."""
        self.answer(Put(1, KEYS, HERE))
        assert self.found(2) == 4
        self.answer(Get(3, KEYS, THERE))

    def _next(self) -> Reply:
        while isinstance(reply := self._connection.recv(), CallOver):
            self.progress.append(reply.kind)
        assert isinstance(reply, Outcomes | LookAnswer)
        return reply

    def removed(self, name: str) -> None:
        """Waits until it is: nobody else does."""
        with self.store.changed:
            assert self.store.changed.wait_for(lambda: name not in self.store.objects, 20)

    def close(self) -> None:
        self._connection.close()
        self._thread.join()


@pytest.fixture
def at_once() -> int:
    """How many blocks a call of the store takes at most."""
    return porter_process.BATCH_BLOCKS_MAX


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, at_once: int) -> Iterator[Bench]:
    monkeypatch.setattr(porter_process, "BATCH_BLOCKS_MAX", at_once)
    with closing(Bench()) as made:
        yield made


def test_blocks_come_back_as_they_were_put(bench: Bench) -> None:
    assert bench.answer(Put(1, KEYS, HERE)) == WHOLE
    assert {len(content) for content in bench.store.objects.values()} == {BLOCK_BYTES + SEAL_BYTES}
    assert bench.found(2) == 4
    assert bench.answer(Get(3, KEYS, THERE)) == WHOLE
    assert np.array_equal(bench.slots[list(HERE)], bench.slots[list(THERE)])


@pytest.mark.parametrize("at_once", [porter_process.BATCH_BLOCKS_MAX, 4, 2, 1])
def test_a_block_that_changed_in_the_store_is_bad_and_one_that_is_gone_is_missing(bench: Bench) -> None:
    """This holds for any number of blocks in a call, and of threads that check it."""
    bench.answer(Put(1, KEYS, HERE))
    first, second, third, fourth = bench.store.objects
    for at in (0, BLOCK_BYTES - 1, BLOCK_BYTES, -1):  # the block and what seals it
        whole = bench.store.objects[second]
        bench.store.objects[second] = flipped(whole, at)
        assert bench.answer(Get(2, KEYS, THERE)) == (Outcome.WHOLE, Outcome.BAD, Outcome.WHOLE, Outcome.WHOLE)
        bench.removed(second)
        bench.store.objects[second] = whole
    bench.store.objects[first] = bench.store.objects[second]
    del bench.store.objects[third]
    assert bench.answer(Get(3, KEYS, THERE)) == (Outcome.BAD, Outcome.WHOLE, Outcome.MISSING, Outcome.WHOLE)
    bench.removed(first)
    bench.store.objects[fourth] = flipped(bench.store.objects[fourth], 7)
    # What was bad is gone: nobody could use it, and nobody could have put it anew.
    assert bench.answer(Get(4, KEYS, THERE)) == (Outcome.MISSING, Outcome.WHOLE, Outcome.MISSING, Outcome.BAD)
    bench.removed(fourth)
    assert set(bench.store.objects) == {second}
    assert bench.answer(Put(5, KEYS, HERE)) == bench.answer(Get(6, KEYS, THERE)) == WHOLE


def test_a_store_that_removes_nothing_leaves_the_answer_as_it_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Sequence[str]) -> None:
        raise OSError("no")

    bench.answer(Put(1, KEYS, HERE))
    bench.store.objects = {name: flipped(content, 3) for name, content in bench.store.objects.items()}
    monkeypatch.setattr(bench.store, "remove", fails)
    assert bench.answer(Get(2, KEYS, THERE)) == (Outcome.BAD,) * 4


class Flaky(DictStore):
    """What comes first is wrong, or late, and what comes then is right."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[list[Outcome]] = []

    def get(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        came = super().get(names, addresses, nbytes)
        if not self.outcomes:
            return came
        for address in addresses:
            ctypes.memset(address, 0xA5, 16)
        return self.outcomes.pop(0)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(f"{__name__}.DictStore", Flaky)
    with closing(Bench()) as made:
        made.answer(Put(1, KEYS, HERE))
        yield made


def test_what_went_wrong_on_its_way_is_read_again_and_stays(flaky: Bench) -> None:
    store = flaky.store
    assert isinstance(store, Flaky)
    store.outcomes = [[Outcome.WHOLE] * 4]
    assert flaky.answer(Get(2, KEYS, THERE)) == WHOLE
    assert len(store.objects) == 4 and np.array_equal(flaky.slots[list(HERE)], flaky.slots[list(THERE)])


def test_what_came_behind_its_lease_is_whole_or_missing_and_never_removed(flaky: Bench) -> None:
    store = flaky.store
    assert isinstance(store, Flaky)
    store.outcomes = [[Outcome.LATE] * 4]
    assert flaky.answer(Get(2, KEYS, THERE)) == (Outcome.MISSING,) * 4
    assert len(store.objects) == 4


def test_a_porter_that_finds_much_to_be_bad_removes_no_more(flaky: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_process, "REMOVED_MAX", 3)
    store = flaky.store
    assert isinstance(store, Flaky)
    for number in range(2, 6):
        store.outcomes = [[Outcome.WHOLE] * 4, [Outcome.WHOLE] * 4]
        flaky.answer(Get(number, KEYS, THERE))
    with store.changed:
        assert store.changed.wait_for(lambda: len(store.objects) <= 1, 20)
    assert len(store.objects) == 1


def test_a_check_keeps_no_thread_from_those_that_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches wait for the store, and a put goes on."""
    monkeypatch.setattr(f"{__name__}.DictStore", HeldGets)
    with closing(Bench()) as bench:
        store = bench.store
        assert isinstance(store, HeldGets)
        assert bench.answer(Put(1, KEYS, HERE)) == WHOLE
        for number in range(10, 20):
            bench.send(Get(number, KEYS, THERE))
        assert store.held.wait(20)
        assert bench.answer(Put(2, KEYS, HERE)) == WHOLE
        store.let_go.set()
        assert {bench.next_answer().number for _ in range(10)} == set(range(10, 20))


class HeldGets(DictStore):
    def __init__(self) -> None:
        super().__init__()
        self.held, self.let_go = threading.Event(), threading.Event()

    def get(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        self.held.set()
        assert self.let_go.wait(20)
        return super().get(names, addresses, nbytes)


class HeldMoves(HeldGets):
    """Puts wait as well."""

    def __init__(self) -> None:
        super().__init__()
        self.put_is_held = threading.Event()

    def put(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        self.put_is_held.set()
        assert self.let_go.wait(20)
        return super().put(names, addresses, nbytes)


def test_a_lookup_waits_for_no_put_and_no_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.DictStore", HeldMoves)
    with closing(Bench()) as bench:
        store = bench.store
        assert isinstance(store, HeldMoves)
        for number in range(10, 20):
            bench.send(Put(number, KEYS, HERE))
            bench.send(Get(10 + number, KEYS, THERE))
        assert store.held.wait(20) and store.put_is_held.wait(20)
        assert bench.found(1) == 0
        store.let_go.set()
        assert not any(bench.next_answer().error for _ in range(20)), "a call was let go before it had waited too long"


def test_a_lookup_soon_gets_the_interpreter_from_a_thread_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the porter alone: the engine's process keeps what it has."""
    set_to: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", set_to.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(porter_process, "end_with", lambda _: None)
    ours, theirs = socket.socketpair()
    porter_process.main(Spec(theirs.detach(), -1, 0, 0, 0, 0, 1, "nobody", "tcp", None, 0))
    with closing(Connection(ours.detach())) as connection:
        assert not connection.recv().is_up
    assert set_to and max(set_to) < sys.getswitchinterval()


def test_each_call_of_the_store_shows_that_the_process_moves_on(bench: Bench) -> None:
    bench.do_all()
    assert bench.progress == ["Put", "Look", "Get"]


class HeldStore(DictStore):
    """The first put waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.let_go = threading.Event(), threading.Event()
        self.order: list[list[str]] = []

    def put(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        if not self.order:
            self.held.set()
            assert self.let_go.wait(20)
        self.order.append(list(names))
        return super().put(names, addresses, nbytes)


@pytest.mark.parametrize("at_once", [3])
def test_puts_that_wait_share_calls_and_prompts_go_first(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """The first batch travels and the second one is sealed when the others come."""
    monkeypatch.setattr(porter_process, "BATCH_BLOCKS_MAX", at_once)
    monkeypatch.setattr(f"{__name__}.DictStore", HeldStore)
    with closing(Bench()) as bench:
        store = bench.store
        assert isinstance(store, HeldStore)
        keys = [bytes([100 + number]) * 32 for number in range(9)]
        messages = [Put(number, (keys[number],), (0,)) for number in range(6)]
        bench.send(messages[0])
        assert store.held.wait(20)
        for message in (*messages[1:], Put(6, tuple(keys[6:8]), (1, 2), True), Put(8, (keys[8],), (3,), True)):
            bench.send(message)
        assert bench.found(1) == 0, "all of them have been taken"
        store.let_go.set()
        answers = {bench.next_answer().number for _ in range(8)}
        assert answers == {0, 1, 2, 3, 4, 5, 6, 8}
        named = {object_name(key, 0, 1): at for at, key in enumerate(keys)}
        order = [[named[name] for name in call] for call in store.order]
    assert order[0] == [0] and [6, 7, 8] in order
    behind = [each for call in order[1:] for each in call if each < 6]
    assert behind == [1, 2, 3, 4, 5], "what came first goes first"
    assert sum(map(len, order)) == 9 and max(map(len, order)) == 3
    assert order.index([6, 7, 8]) <= 2, "at most one batch that was ahead goes before them"


def test_a_put_that_fails_fails_all_that_shared_its_call(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> list[Outcome]:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "put", fails)
        assert bench.reply(Put(1, KEYS, HERE)).error == "OSError: gone"
    assert bench.answer(Put(2, KEYS, HERE)) == WHOLE, "and nothing else"


@pytest.mark.parametrize("at_once", [1])
def test_a_call_that_fails_fails_its_job(bench: Bench) -> None:
    """Its other calls go well."""
    bench.answer(Put(1, KEYS, HERE))
    bench.store.fails_for = {next(iter(bench.store.objects))}
    assert bench.reply(Get(2, KEYS, THERE)).error == "OSError: gone"
    bench.store.fails_for = set()
    assert bench.answer(Get(3, KEYS, THERE)) == WHOLE


def test_threads_that_wait_for_the_store_in_a_loop_give_way_to_others_and_checksums_to_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    sealing: set[int] = set()

    def noted(*args: Any) -> list[int]:
        sealing.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return crc32c(*args)

    monkeypatch.setattr(porter_process, "crc32c", noted)
    bench.do_all()
    nicer, nicest = (min(usual + more, NICE_MAX) for more in (porter_process.NICER, porter_process.SEALERS_NICER))
    assert bench.store.nice == {"put": nicer, "exist": usual, "get": nicer}
    assert sealing == {nicest} and (nicest > nicer or nicer == NICE_MAX)
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual


@pytest.mark.parametrize("at_once", [3])
def test_small_blocks_do_not_overflow_the_clients_queue(bench: Bench) -> None:
    """More of them than one call may have."""
    assert bench.answer(Put(1, KEYS, HERE)) == WHOLE
    assert bench.answer(Get(2, KEYS, THERE)) == WHOLE
    assert bench.store.calls == [("put", 3), ("put", 1), ("get", 3), ("get", 1)]
    assert np.array_equal(bench.slots[list(HERE)], bench.slots[list(THERE)])


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 4
    return bytes(changed)
