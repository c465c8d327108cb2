"""The machine of the host tier with a store behind it, which answers when it likes, wrongly, or never again. Requests
end in every way that upstream has while a fetch, or the load behind it, is on its way.
"""

import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.offload import test_state_machine as host
from tests.offload.conftest import BLOCK_BYTES, Bench
from tests.offload.upstream_double import State
from trtllm_kvfix.native import Device
from trtllm_kvfix.offload.remote import scheduler as remote_scheduler
from trtllm_kvfix.offload.remote.messages import LookAnswer

from .porter_double import Key, PorterDouble, planted, sealed

SECONDS_MAX = 40


class RemoteMachine(host.ConnectorMachine):
    def make(self, device: Device, **sizes: Any) -> Bench:
        self.planted, self.memory = pytest.MonkeyPatch(), dict[Key, bytes]()
        planted(self.planted, self.memory)
        self.now = 1000.0
        self.planted.setattr(remote_scheduler, "monotonic", lambda: self.now)
        chosen = {"REMOTE_MIN_REUSE_BLOCKS": 1, "HOST_BYTES": host.HOST_BLOCKS * sealed(BLOCK_BYTES)}
        variables = {f"TRTLLM_KVFIX_OFFLOAD_{name}": str(value) for name, value in chosen.items()}
        with mock.patch.dict(os.environ, variables):
            bench = super().make(device, **sizes)
        bench.take_note = lambda: None  # type: ignore[method-assign]  # it would drop what is planned
        self.porter: PorterDouble = bench.worker.side.carrier.porter
        return bench

    # ------------------------------------------------------------------------------------------ the store

    @rule(gets=st.booleans(), puts=st.booleans(), looks=st.booleans())
    def hold_the_store(self, gets: bool, puts: bool, looks: bool) -> None:
        self.porter.holds_gets, self.porter.holds_puts, self.porter.holds_looks = gets, puts, looks

    @rule(seconds=st.integers(0, SECONDS_MAX))
    def no_lookup_is_answered(self, seconds: int) -> None:
        self.porter.silent_s = seconds

    @rule(index=st.integers(0, 20))
    def answer_one(self, index: int) -> None:
        if self.porter.asked:
            self.porter.answer(self.porter.asked[index % len(self.porter.asked)])

    @rule(is_up=st.booleans())
    def end_the_porter(self, is_up: bool) -> None:
        """The porter ends as after a failed read: what it was asked is answered once it is gone."""
        for message in list(self.porter.asked):
            self.porter.answer(message, "the process has ended")
        self.porter.found.extend(LookAnswer(look.number, error="the process has ended") for look in self.porter.looking)
        self.porter.looking.clear()
        self.porter.begin_anew()
        self.porter.is_up = is_up

    @rule(index=st.integers(0, 100))
    def fail_reads_of_one(self, index: int) -> None:
        if self.memory:
            self.porter.failing.add(list(self.memory)[index % len(self.memory)])

    @rule()
    def write_late(self) -> None:
        """What has failed writes its slots all the same."""
        self.porter.write_late()

    @rule(index=st.integers(0, 100))
    def evict(self, index: int) -> None:
        if self.memory:
            del self.memory[list(self.memory)[index % len(self.memory)]]

    @rule(seconds=st.integers(0, SECONDS_MAX))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def forget_the_host_tier(self) -> None:
        """The host tier forgets, so that blocks that come back are fetched."""
        self.executor.forget_device_cache()
        self.bench.index.drop()

    # ------------------------------------------------------------------------------------------ ends

    @rule(index=st.integers(0, 20), on_v2=st.booleans(), is_told=st.booleans())
    def end_while_it_loads(self, index: int, on_v2: bool, is_told: bool) -> None:
        """V1 asks whether blocks may go, V2 gives them away at once. 1.1 alone says that such a request is over."""
        loading = [one for one in self.executor.active if one.state is State.LOADING]
        if not loading:
            return
        self.open_gate()  # V2 waits for what has begun
        request = loading[index % len(loading)]
        request.cancelled = True
        if is_told:
            assert not self.bench.manager.request_finished(request, self.executor.blocks_of(request))
        manager = SimpleNamespace(kv_cache_map={}) if on_v2 else SimpleNamespace(free_resources=self.executor._free)
        self.executor.active.remove(request)
        if not self.bench.worker.kept.keeps(self.bench.manager, manager, request):
            self.executor._free(request)

    # ------------------------------------------------------------------------------------------ what holds

    def let_all_go(self) -> None:
        super().let_all_go()
        self.porter.holds_gets = self.porter.holds_puts = self.porter.holds_looks = False

    def settle(self) -> None:
        side = self.bench.scheduler.side
        self.porter.begin_anew()
        for _ in range(2000):
            if len(side.ledger) == 0:
                break
            self.executor.step()
            self.executor.idle()
        assert len(side.ledger) == 0
        assert sorted(side.behind.puts._staging._free) == list(range(side.behind.puts._staging.first, host.HOST_BLOCKS))
        assert side.behind.puts._pinned == 0 and side.behind.puts._coming == set()
        assert self.bench.worker.side._loading == {} and len(self.bench.worker.kept) == 0

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "planted"):
                self.planted.undo()


def test_a_fetch_that_ends_as_its_request_does_leaves_nothing_to_wait_for() -> None:
    """On V2, which gives the blocks away at once: the load behind the fetch was planned, and no rank knew of it."""
    state = RemoteMachine()
    state.start(chunk=4, seed=487, past=[[3] * 4 + [1, 0, 0], [1] * 4 + [0]])
    state.come_back(forget=False, index=35, more=[0, 0])
    state.drop()
    state.steps(count=2)
    assert [request.state for request in state.executor.active] == [State.LOADING]
    state.forget_the_host_tier()
    state.end_while_it_loads(index=0, is_told=True, on_v2=True)
    state.teardown()


TestRemote = RemoteMachine.TestCase
if settings.get_current_profile_name() != "fuzz":
    TestRemote.settings = host.TestConnector.settings
