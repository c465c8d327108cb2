"""A porter whose store is a dict, and that answers when a test says so."""

import ctypes
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import pytest

from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.remote import worker
from trtllm_kvfix.offload.remote.keys import keys_behind
from trtllm_kvfix.offload.remote.messages import Get, Look, LookAnswer, Message, Outcome, Outcomes, Put, Spec

Key = tuple[bytes, int]


def sealed(block_bytes: int) -> int:
    """Bytes of a slot that has room for a seal."""
    return (block_bytes + SEAL_BYTES + 63) // 64 * 64


class PorterDouble:
    """`memory` is the store's: of several engines, or of one that begins anew."""

    def __init__(self, spec: Spec, pool_address: int, memory: dict[Key, bytes]) -> None:
        self.spec, self._address, self.memory = spec, pool_address, memory
        self.is_up, self.text, self.error = True, "here", None
        self.asked: deque[Put | Get] = deque()
        self.answered: deque[tuple[Message, Outcomes]] = deque()
        self.holds_gets = self.holds_puts = self.fails_gets = False
        self.bad: set[Key] = set()  # what comes of these is not what was put
        self.failing: set[Key] = set()  # reads of these fail, and write for as long as the process lives
        self._unsure: set[int] = set()
        self._leaving: dict[int, Collection[int]] = {}
        self.looks, self.holds_looks, self.silent_s = 0, False, 0.0
        self.looking: deque[Look] = deque()
        self.found: deque[LookAnswer] = deque()
        self.on_look: Callable[[], None] = lambda: None
        self.rests = 0

    def ask(self, message: Message) -> bool:
        if isinstance(message, Look):
            self.looks += 1
            self.on_look()
        if self.is_up and isinstance(message, Look):
            self.looking.append(message)
        elif self.is_up and not isinstance(message, Look):
            self.asked.append(message)
        return self.is_up

    def take_found(self) -> list[LookAnswer]:
        while self.looking and not self.holds_looks:
            self.found.append(self.found_of(self.looking.popleft()))
        return [self.found.popleft() for _ in range(len(self.found))]

    def wait_for_word(self, _wait_s: float) -> None:
        self.rests += bool(self.looking or self.asked)

    def waits_s(self, kind: type[Message]) -> float:
        assert kind is Look
        return self.silent_s if self.looking else 0.0

    def found_of(self, look: Look) -> LookAnswer:
        keys = keys_behind(look.start, 0, look.tokens, look.tokens_per_block, look.spans)
        there = [all((key, rank) in self.memory for rank in range(self.spec.ranks)) for key in keys]
        return LookAnswer(look.number, b"".join(keys), [*there, False].index(False))

    def end_if_stuck(self) -> None:
        """It is the test that ends it."""

    def take_answered(self) -> list[tuple[Message, Outcomes]]:
        for message in list(self.asked) if self.fails_gets else []:
            if isinstance(message, Get):
                self.answer(message, "there is no store now")
        for message in [] if self.holds_gets and self.holds_puts else list(self.asked):
            if not (self.holds_gets if isinstance(message, Get) else self.holds_puts):
                self.answer(message)
        return [self.answered.popleft() for _ in range(len(self.answered))]

    def answer(self, message: Put | Get, error: str = "") -> None:
        self.asked.remove(message)
        outcomes = () if error else tuple(self._moved(message, at) for at in range(len(message.keys)))
        self.answered.append((message, Outcomes(message.number, outcomes, error, 0.001)))

    def note_gone(self, number: int, slots: Collection[int]) -> None:
        self._leaving[number] = slots

    def take_gone(self) -> list[int]:
        gone = [number for number, slots in self._leaving.items() if self._unsure.isdisjoint(slots)]
        for number in gone:
            del self._leaving[number]
        return gone

    def write_late(self) -> None:
        for slot in self._unsure:
            ctypes.memset(self.address_of(slot), 0xA5, self.spec.block_bytes)

    def begin_anew(self) -> None:
        """Another process takes its place."""
        self._unsure.clear()

    def close(self, wait_s: float) -> bool:
        del wait_s
        return True

    def address_of(self, slot: int) -> int:
        return self._address + slot * self.spec.slot_bytes

    def _moved(self, message: Message, at: int) -> Outcome:
        assert isinstance(message, Put | Get)
        size, address = self.spec.block_bytes, self.address_of(message.slots[at])
        key = message.keys[at], self.spec.rank
        if isinstance(message, Put):
            self.memory[key] = ctypes.string_at(address, size)
            return Outcome.WHOLE
        if key not in self.memory:
            return Outcome.MISSING
        if key in self.failing:
            self._unsure.add(message.slots[at])
            return Outcome.FAILED
        ctypes.memmove(address, self.memory[key], size)
        if key in self.bad:
            ctypes.memset(address, 0xA5, size)
            del self.memory[key]  # as the porter removes it
            self.bad.remove(key)
            return Outcome.BAD
        return Outcome.WHOLE


def planted(patch: pytest.MonkeyPatch, memory: dict[Key, bytes]) -> None:
    """A connector that starts from now on has a PorterDouble in it, and a remote tier in its settings."""
    pools: list[Any] = []
    register = worker.RemoteCarrier.register

    def noting_the_pool(carrier: Any, layout: Any, pool: Any) -> None:
        pools.append(pool)
        register(carrier, layout, pool)

    def porter(spec: Spec, *_: Any) -> PorterDouble:
        return PorterDouble(spec, pools[-1].address, memory)

    patch.setattr(worker.RemoteCarrier, "register", noting_the_pool)
    patch.setattr(worker, "PorterHandle", porter)
    patch.setattr(worker, "find_spec", lambda _: object())
    for name, value in {"kind": "mooncake", "master": "here:1", "model": "m"}.items():
        patch.setenv(f"TRTLLM_KVFIX_OFFLOAD_REMOTE_{name.upper()}", value)
