"""The process that has the store's client, in this one, on a store that is a dict."""

import ctypes
import mmap
import os
import socket
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
from trtllm_kvfix.offload.remote.messages import Get, Look, Message, Outcome, Outcomes, Put, Spec

BLOCK_BYTES, SLOT_BYTES, SLOTS = 4096, 4096 + 64, 8
KEYS = tuple(bytes([number]) * 32 for number in range(4))
HERE, THERE = (0, 1, 2, 3), (4, 7, 5, 6)
NICE_MAX = 19
WHOLE = (Outcome.WHOLE,) * 4


class DictStore:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails_for: set[str] = set()
        self.nice: dict[str, int] = {}  # of the thread that called
        self.calls: list[tuple[str, int]] = []  # with so many objects

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
        self._thread = threading.Thread(target=porter.run)
        self._thread.start()

    def answer(self, message: Message) -> tuple[Outcome, ...]:
        answer = self.reply(message)
        assert not answer.error
        return answer.outcomes

    def reply(self, message: Message) -> Outcomes:
        self._connection.send(message)
        answer: Outcomes = self._connection.recv()
        return answer

    def close(self) -> None:
        self._connection.close()
        self._thread.join()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(Bench()) as made:
        yield made


def test_blocks_come_back_as_they_were_put(bench: Bench) -> None:
    assert bench.answer(Put(1, KEYS, HERE)) == WHOLE
    assert {len(content) for content in bench.store.objects.values()} == {BLOCK_BYTES + SEAL_BYTES}
    assert bench.answer(Look(2, KEYS)) == WHOLE
    assert bench.answer(Get(3, KEYS, THERE)) == WHOLE
    assert np.array_equal(bench.slots[list(HERE)], bench.slots[list(THERE)])


@pytest.mark.parametrize("at_once", [porter_process.BATCH_BLOCKS_MAX, 4, 2, 1])
def test_a_block_that_changed_in_the_store_is_bad_and_one_that_is_gone_is_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """This holds for any number of blocks in a call, and of threads that check it."""
    monkeypatch.setattr(porter_process, "BATCH_BLOCKS_MAX", at_once)
    bench.answer(Put(1, KEYS, HERE))
    first, second, third, fourth = bench.store.objects
    for at in (0, BLOCK_BYTES - 1, BLOCK_BYTES, -1):  # the block and what seals it
        whole = bench.store.objects[second]
        bench.store.objects[second] = flipped(whole, at)
        assert bench.answer(Get(2, KEYS, THERE)) == (Outcome.WHOLE, Outcome.BAD, Outcome.WHOLE, Outcome.WHOLE)
        bench.store.objects[second] = whole
    bench.store.objects[first] = bench.store.objects[second]
    del bench.store.objects[third]
    assert bench.answer(Get(3, KEYS, THERE)) == (Outcome.BAD, Outcome.WHOLE, Outcome.MISSING, Outcome.WHOLE)
    bench.store.objects[fourth] = flipped(bench.store.objects[fourth], 7)
    assert bench.answer(Get(4, KEYS, THERE)) == (Outcome.BAD, Outcome.WHOLE, Outcome.MISSING, Outcome.BAD)


def test_a_call_that_fails_fails_its_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other calls go well."""
    monkeypatch.setattr(porter_process, "BATCH_BLOCKS_MAX", 1)
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
    for message in (Put(1, KEYS, HERE), Look(2, KEYS), Get(3, KEYS, THERE)):
        bench.answer(message)
    nicer, nicest = (min(usual + more, NICE_MAX) for more in (porter_process.NICER, porter_process.SEALERS_NICER))
    assert bench.store.nice == {"put": nicer, "exist": usual, "get": nicer}
    assert sealing == {nicest} and (nicest > nicer or nicer == NICE_MAX)
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual


def test_small_blocks_do_not_overflow_the_clients_queue(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than one call may have."""
    monkeypatch.setattr(porter_process, "BATCH_BLOCKS_MAX", 3)
    assert bench.answer(Put(1, KEYS, HERE)) == WHOLE
    assert bench.answer(Get(2, KEYS, THERE)) == WHOLE
    assert bench.store.calls == [("put", 3), ("put", 1), ("get", 3), ("get", 1)]
    assert np.array_equal(bench.slots[list(HERE)], bench.slots[list(THERE)])


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 4
    return bytes(changed)
