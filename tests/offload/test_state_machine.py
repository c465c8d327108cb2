"""Requests come, are computed in chunks, end, are cancelled and preempted; copies fail, are held, and end later on
another rank; an operator turns switches. Whatever is drawn: what can be found has arrived, and is what its tokens say.

The shape is that of tests/core/test_state_machine.py; `HYPOTHESIS_PROFILE=fuzz` runs it long. Copies take the time they
take, so which requests are active and whether the device is still held differ from run to run. No precondition looks at
them, or Hypothesis would be given other rules to choose from when it repeats an example; rules do nothing instead.
"""

import ctypes
import os
from collections.abc import Collection
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, open_device
from trtllm_kvfix.offload.ledger import Ended, RankReport
from trtllm_kvfix.ranks import PartResult

from .conftest import BLOCK_BYTES, Bench
from .contents import values
from .executor import BLOCK_WORDS, TOKENS_PER_BLOCK, WORDS_PER_TOKEN
from .faults import FAULTS, heal, transfers_of
from .upstream_double import Request, State

HOST_BLOCKS, DEVICE_BLOCKS = 24, 32
PROMPT_MAX = 60
# The lane of the last one is gone for good, which has a test of its own.
PASSING = sorted(set(FAULTS) - {"the lane is closed"})
DIRECTIONS = st.sampled_from(["store", "load"])
# Prompts that share beginnings: a few openings, and then few different tokens.
PROMPTS = st.builds(
    lambda opening, rest: [opening] * 4 + rest,
    st.integers(1, 3),
    st.lists(st.integers(0, 1), min_size=1, max_size=24),
)


class Follower:
    """The other of two ranks: it has what the first has, but its transfers may end later."""

    rank, size = 0, 2  # as the first rank sees it

    def __init__(self) -> None:
        self.is_late = False
        self.was_late = 0
        self._ended: list[Ended] = []

    def gather(self, value: Any) -> list[Any]:
        if not (isinstance(value, PartResult) and isinstance(value.value, RankReport)):
            return [value, value]
        self._ended += value.value.ended
        if self.is_late:
            self.was_late += 1
            return [value, PartResult(RankReport([], ()))]
        ended, self._ended = self._ended, []
        return [value, PartResult(RankReport(ended, ()))]


class ConnectorMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 1000),
        chunk=st.sampled_from([4, 8, 1 << 20]),
        past=st.lists(PROMPTS, min_size=1, max_size=4),
    )
    def start(self, seed: int, chunk: int, past: list[list[int]]) -> None:
        variables = {"TRTLLM_KVFIX_OFFLOAD_HOST_BYTES": str(HOST_BLOCKS * BLOCK_BYTES)}
        with mock.patch.dict(os.environ, variables):
            self.bench = self.make(open_device("cpu", seed), blocks=DEVICE_BLOCKS, chunk_tokens=chunk, batch=4)
        self.follower = self.bench.worker.side._ranks = Follower()  # registered alone, it has company from here on
        self.executor = self.bench.executor
        self.number = 0
        self.prompts: list[list[int]] = []
        self.gate: int | None = None
        self.patch: Any = None
        transfers = transfers_of(self.bench)
        wait_for = transfers.wait_for

        def let_go_and_wait_for(jobs: Collection[int]) -> None:
            self.open_gate()
            wait_for(jobs)

        transfers.wait_for = let_go_and_wait_for  # type: ignore[method-assign]
        for prompt in past:
            self.submit(prompt, 2, None)
        self.executor.run()
        self.executor.forget_device_cache()

    def make(self, device: Device, **sizes: Any) -> Bench:
        return Bench(device, **sizes)

    # ------------------------------------------------------------------------------------------ requests

    @rule(prompt=PROMPTS, new_tokens=st.integers(1, 6), salt=st.sampled_from([None, None, 5]))
    def arrive(self, prompt: list[int], new_tokens: int, salt: int | None) -> None:
        self.submit(prompt, new_tokens, salt)

    def submit(self, prompt: list[int], new_tokens: int, salt: int | None) -> None:
        self.number += 1
        self.prompts.append(list(prompt))
        self.executor.submit(Request(self.number, list(prompt), max_new_tokens=new_tokens, cache_salt_id=salt))

    @precondition(lambda self: self.prompts)
    @rule(index=st.integers(0, 50), more=st.lists(st.integers(0, 1), max_size=6), forget=st.booleans())
    def come_back(self, index: int, more: list[int], forget: bool) -> None:
        if forget:
            self.executor.forget_device_cache()
        self.submit([*self.prompts[index % len(self.prompts)], *more][:PROMPT_MAX], 2, None)

    @rule(count=st.integers(1, 5))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.executor.step()

    def running(self) -> list[Request]:
        """Those that upstream cancels or preempts."""
        return [one for one in self.executor.active if one.state in (State.CONTEXT, State.GENERATION)]

    @rule(index=st.integers(0, 20))
    def cancel(self, index: int) -> None:
        running = self.running()
        if running:
            self.executor.cancel(running[index % len(running)])

    @rule(index=st.integers(0, 20))
    def preempt(self, index: int) -> None:
        """The device may be held, too: a request that waits for blocks that a transfer uses lets it go."""
        running = self.running()
        if running:
            self.executor.preempt(running[index % len(running)])
            self.executor.step()

    # ------------------------------------------------------------------------------------------ transfers

    @rule(fault=st.sampled_from(PASSING), direction=DIRECTIONS)
    def break_transfers(self, fault: str, direction: str) -> None:
        self.open_gate()
        self.mend()
        self.patch = pytest.MonkeyPatch()
        FAULTS[fault](self.patch, self.bench, direction)

    @rule()
    def mend(self) -> None:
        if self.patch is not None:
            self.patch.undo()
            self.patch = None
        heal(self.bench)

    @precondition(lambda self: self.patch is None)
    @rule()
    def hold_the_device(self) -> None:
        if self.gate is None:
            self.gate = self.bench.device.close_gate(self.executor.stream)

    @rule()
    def let_it_go(self) -> None:
        self.open_gate()

    def open_gate(self) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            self.bench.device.open_gate(gate)

    @rule(is_late=st.booleans())
    def follow(self, is_late: bool) -> None:
        self.follower.is_late = is_late

    @rule()
    def wait(self) -> None:
        self.bench.wait_for_a_transfer(0.005)

    # ------------------------------------------------------------------------------------------ the operator

    @rule(store=st.booleans(), load=st.booleans())
    def switch(self, store: bool, load: bool) -> None:
        switches = self.bench.scheduler.side._switches
        switches.store, switches.load = store, load

    @rule()
    def drop(self) -> None:
        self.bench.index.drop()

    # ------------------------------------------------------------------------------------------ what holds

    @invariant()
    def the_books_are_sound(self) -> None:
        if hasattr(self, "bench"):
            self.bench.index.check_invariants()
            self.executor.cache.check_invariants()

    @invariant()
    def what_can_be_found_has_arrived_and_is_right(self) -> None:
        if not hasattr(self, "bench"):
            return
        pool, index = transfers_of(self.bench)._pool, self.bench.index
        host = np.ctypeslib.as_array((ctypes.c_uint32 * (pool.bytes // 4)).from_address(pool.address))
        blocks = host.reshape(pool.slots, -1)[:, :BLOCK_WORDS]
        for prompt in self.prompts[-12:]:
            sequence = index.open()
            index.extend(sequence, prompt[: len(prompt) // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK])
            slots = index.pin(sequence, 0, index.held(sequence))
            for at, slot in enumerate(slots):
                expected = values(prompt)[at * TOKENS_PER_BLOCK : (at + 1) * TOKENS_PER_BLOCK]
                words = np.repeat(np.array(expected, np.uint32), WORDS_PER_TOKEN)
                assert np.array_equal(blocks[slot], words), (prompt, at)
            index.unpin(slots)
            index.close(sequence)

    def let_all_go(self) -> None:
        self.open_gate()
        self.mend()
        self.follower.is_late = False

    def settle(self) -> None:
        """Requests are done, and what they left on its way comes to its end."""
        self.bench.settle()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.let_all_go()
        self.executor.run()
        self.settle()
        assert self.executor.corrupt == []
        self.bench.index.drop()
        assert self.bench.index.stats().free == self.bench.index.slots, "nothing is pinned or on its way"
        assert self.bench.index.stats().sequences == 0, "every request has ended"
        assert len(self.bench.scheduler.side._sources) == 0
        self.bench.close()
        assert counters.offload_pinned_bytes.value == 0


def test_the_other_rank_is_late_when_it_is_said_to_be() -> None:
    """Or the machine would show nothing of ranks that end their transfers at different times."""
    state = ConnectorMachine()
    state.start(chunk=1 << 20, seed=1, past=[[1] * 4 + [0]])
    state.follow(is_late=True)
    state.arrive(new_tokens=5, prompt=[2] * 4 + [1, 0, 1], salt=None)
    for _ in range(6):
        state.steps(count=1)
        state.bench.wait_for_transfers()
    assert state.follower.was_late > 0 and state.follower._ended, "and has ends that it has not told"
    state.teardown()


TestConnector = ConnectorMachine.TestCase
if settings.get_current_profile_name() != "fuzz":
    TestConnector.settings = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
