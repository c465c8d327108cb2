"""A pool in which three requests load at a time: together they hold all but one block, and the oldest grows by six."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.patches import ROOM_FOR_LOADS, Room
from trtllm_kvfix.overlay import fuse

from .stand_in import OffloadServer, offloading
from .test_kept_blocks import WAIT_S, transfers_held

DEVICE_BLOCKS, HOST_BLOCKS = 10, 32
LONG, SHORT, SHORTER = 10, 11, 12
NEW_TOKENS = {LONG: 24, SHORT: 4, SHORTER: 3}
FILLS_THE_DEVICE = list(range(37))
ALL_PARKED, LOADS_END, ITERATIONS_MAX = 8, 9, 100  # a request takes as many as it has new tokens, and a few


class NobodyGoesOn(Exception):
    pass


def prompt_of(request_id: int) -> list[int]:
    """Two whole blocks, which the host tier has, and a token."""
    return list(range(100 * request_id, 100 * request_id + 9))


def wait_for_transfers(server: OffloadServer) -> None:
    for running in server.worker.side._transfers.running():
        assert running.lane.wait(running.job.number, WAIT_S)


def come_back_together(
    server: OffloadServer, monkeypatch: pytest.MonkeyPatch, look: Callable[[int], None] = lambda _: None
) -> None:
    """Loads are held for some iterations; from then on each ends within one. `look` is called before each."""
    for number in NEW_TOKENS:
        server.run([server.request(number - 10, prompt_of(number), 1)])
    server.run([server.request(9, FILLS_THE_DEVICE, 1)])
    wait_for_transfers(server)  # the last one's blocks are free from the first iteration on
    executor, pauses = server.executor, server.pauses
    requests = [server.request(number, prompt_of(number), new) for number, new in NEW_TOKENS.items()]
    iterations = 0

    with transfers_held(server, monkeypatch) as gate:

        def step() -> None:
            nonlocal iterations
            iterations += 1 if executor.active_requests else 0
            look(iterations)
            if iterations == LOADS_END:
                gate.open()
            if iterations >= LOADS_END:
                wait_for_transfers(server)
            if iterations == ITERATIONS_MAX:
                raise NobodyGoesOn

        with pauses.at(pauses.CALL_SCHEDULE, step):
            server.run(requests)


@pytest.mark.parametrize("variant", VARIANTS)
def test_requests_come_back_from_their_loads_and_go_on(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held_back, loaded = counters.offload_held_back_requests.value, counters.offload_loaded_blocks.value
    parked: list[list[int]] = []

    def look(iteration: int) -> None:
        if iteration == ALL_PARKED:
            parked.append(sorted(server.worker.side.requests_in_transfer()))

    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        come_back_together(server, monkeypatch, look)
        server.close()
        assert server.contents.corrupt == [] and fuse.of(ROOM_FOR_LOADS).faults == 0
    assert parked == [[LONG]], "nobody takes the room that it needs"
    assert counters.offload_held_back_requests.value == held_back + 2
    assert counters.offload_loaded_blocks.value == loaded + 6


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_that_they_wait_for_each_other(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control. The oldest finds no room, and the scheduler looks at nobody behind it."""
    monkeypatch.setattr(Room, "shown", lambda _self, active: active)
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        with pytest.raises(NobodyGoesOn):
            come_back_together(server, monkeypatch)
        waiting = server.executor.active_requests
        assert [each.request_id for each in waiting] == [LONG, SHORT, SHORTER]
        assert all(each.is_context_init_state for each in waiting), "no load runs any more"
        assert server.manager.impl.get_kv_cache_stats().free_num_blocks == 1
        server.executor.event_loop_error = None


@pytest.mark.parametrize("variant", ["A", "F"])
def test_a_fault_of_ours_leaves_upstreams_choice(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("injected")

    monkeypatch.setattr(Room, "_fitting", fails)
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        with pytest.raises(NobodyGoesOn):
            come_back_together(server, monkeypatch)
        assert fuse.of(ROOM_FOR_LOADS).first_error == "LookupError: injected"
        server.executor.event_loop_error = None
