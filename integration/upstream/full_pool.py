"""Requests that load in a full pool, behind upstream's own capacity scheduler: they need what others would take.

Of the scheduler, the class is upstream's and what it calls is bound. Our connector loads, and each load takes a few
iterations.
"""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.scenarios import ALL, PLAIN, Scenario, prompt
from integration.upstream.server import Server

FULL = replace(PLAIN, overlap=False, blocks=10, budget=64)
POLLS = 8
WAIT_S = 10.0
# Each leaves two blocks in the host tier, and the fourth takes the whole device. Then the first grows by six blocks.
BEFORE = (*(Arrival(n, prompt(100 * n, 9), 1, at=4 * n) for n in (1, 2, 3)), Arrival(4, prompt(900, 37), 1, at=16))
AGAIN = tuple(Arrival(4 + n, prompt(100 * n, 9), new, at=20) for n, new in ((1, 24), (2, 4), (3, 3)))


def full_pool() -> list[Scenario]:
    given: dict[str, Any] = {"connector": "ours", "kind": "full-pool", "eras": ("D",)}
    return [
        Scenario("ours-full-pool", ALL, False, FULL, (*BEFORE, *AGAIN), prepare=loading_late, reused_min=24, **given),
        # The control: our connector without the part that keeps room.
        Scenario(
            "ours-full-pool-no-room", ALL, False, FULL, (*BEFORE, *AGAIN),
            prepare=without_room, dies_of="3 wait", **given,
        ),
    ]  # fmt: skip


def without_room(server: Server) -> None:
    loading_late(server)
    server.connector.worker.choosers.room.shown = lambda active: active


def loading_late(server: Server) -> None:
    """Each load begins some polls of the worker later, and ends within one: the rig knows what was written then."""
    prompts = {each.id: each.prompt for each in (*BEFORE, *AGAIN)}
    transfers = server.connector.worker.side._transfers
    enqueue, ended = transfers._enqueue, transfers.take_ended
    held: list[tuple[int, tuple[Any, ...]]] = []
    polled = 0

    def enqueue_stores(job: Any, direction: str, lane: Any, mark: Any) -> None:
        if direction == "store":
            enqueue(job, direction, lane, mark)
        else:
            held.append((polled + POLLS, (job, direction, lane, mark)))

    def take_ended() -> Any:
        nonlocal polled
        polled += 1
        while held and held[0][0] <= polled:
            _, (job, *how) = held.pop(0)
            enqueue(job, *how)
            (window,), size = FULL.windows, FULL.tokens_per_block
            slots = server.engine.slots_of(job.request_id, window)
            end = job.position + size * len(job.slots)
            server.engine.fill(window, slots, prompts[job.request_id], job.position, end)
        for running in transfers.running():
            running.lane.wait(running.job.number, WAIT_S)
        return ended()

    transfers._enqueue, transfers.take_ended = enqueue_stores, take_ended
