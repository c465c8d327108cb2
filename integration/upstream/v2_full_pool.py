"""Requests that load in a full pool, on the newest V2 manager behind its scheduler.

That promises no request the blocks until its end. Where somebody needs pages it takes those of a request that has
started and waits for no load, and which then begins again. So nobody waits for ever, with loads or without. The
controls take this from it.
"""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.full_pool import BEFORE, FULL, POLLS
from integration.upstream.reserved_loads import _carry_contents, _look_for_what_is_left, _remark_unless
from integration.upstream.scenarios import ALL, Scenario, prompt
from integration.upstream.server import Server

CHUNKED = replace(FULL, chunked=True, budget=8)
LATER = 20


def again(tokens: int, new: int) -> tuple[Arrival, ...]:
    """The host tier has two blocks of each prompt. Together they need more than there is."""
    return tuple(Arrival(4 + n, prompt(100 * n, tokens), new, at=LATER) for n in (1, 2, 3))


GROW, LONG = (*BEFORE, *again(9, 12)), (*BEFORE, *again(21, 5))


def v2_full_pool() -> list[Scenario]:
    return [
        _of("v2-full-pool", FULL, GROW),
        _of("v2-full-pool-nobody-gives-way", FULL, GROW, prepare=nobody_gives_way, dies_of="3 wait"),
        _ours("v2-ours-full-pool", FULL, GROW),
        _ours("v2-ours-full-pool-chunks", CHUNKED, LONG),
        # One ends while it loads, and two have room.
        _of(
            "v2-ours-full-pool-cancelled", FULL, GROW,
            prepare=loading_together, connector="ours", cancels={LATER + 3: [6]},
        ),
        _ours("v2-ours-full-pool-cancelled-later", FULL, GROW, cancels={LATER + 16: [6]}),
        _of(
            "v2-ours-full-pool-nobody-gives-way", FULL, GROW,
            prepare=nobody_gives_way_to_loads, dies_of="3 wait", connector="ours",
        ),
    ]  # fmt: skip


def _of(name: str, shape: Any, arrivals: Any, **given: Any) -> Scenario:
    return Scenario(name, ALL, False, shape, arrivals, kind="v2-newest", eras=("N", "O"), **given)


def _ours(name: str, shape: Any, arrivals: Any, **given: Any) -> Scenario:
    return _of(name, shape, arrivals, prepare=giving_way, connector="ours", **given)


def nobody_gives_way(server: Server) -> None:
    server.executor.scheduler.enable_recompute_pause = False


def nobody_gives_way_to_loads(server: Server) -> None:
    nobody_gives_way(server)
    _load_together(server)


def giving_way(server: Server) -> None:
    loading_together(server)
    _remark_unless(server, lambda: bool(server.gave_way), "nobody gave way")  # type: ignore[attr-defined]


def loading_together(server: Server) -> None:
    _look_for_what_is_left(server)
    _load_together(server)


def _load_together(server: Server) -> None:
    """Each load begins some polls of the worker later, so that several hold their pages and wait."""
    _carry_contents(server)
    transfers = server.connector.worker.side._transfers
    enqueue, ended = transfers._enqueue, transfers.take_ended
    held: list[tuple[int, tuple[Any, ...]]] = []
    polled = together = 0

    def enqueue_stores(job: Any, direction: str, lane: Any, mark: Any) -> None:
        nonlocal together
        if direction == "store":
            enqueue(job, direction, lane, mark)
        else:
            held.append((polled + POLLS, (job, direction, lane, mark)))
            together = max(together, len(held))

    def take_ended() -> Any:
        nonlocal polled
        polled += 1
        while held and held[0][0] <= polled:
            enqueue(*held.pop(0)[1])
        return ended()

    transfers._enqueue, transfers.take_ended = enqueue_stores, take_ended
    _remark_unless(server, lambda: together > 1, "no two requests loaded at a time")
