"""The newest V2 manager under a loop: prompts that share, windows, pages that leave the device, and early ends."""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.scenarios import ALL, APART, PLAIN, SERVED, STAGING_V2, Scenario, prompt
from integration.upstream.server import Server

PLAIN_LOOP = replace(PLAIN, overlap=False)
# One layer group slides past most of these prompts.
GROUPS = replace(PLAIN, windows=(64, 16))
LONG = (Arrival(1, prompt(0, 24), 6), Arrival(2, prompt(100, 30), 4, at=1), Arrival(3, prompt(0, 24), 6, at=9))
# Too few pages for both, so one is suspended and its pages go to the host tier.
TIGHT = replace(PLAIN_LOOP, blocks=8, host_blocks=16)
CROWD = (Arrival(1, prompt(0, 14), 8), Arrival(2, prompt(100, 14), 8))


def loops() -> list[Scenario]:
    return _served() + _ends() + _connected()


def _served() -> list[Scenario]:
    return [
        _of("v2-loop-plain", ALL, PLAIN_LOOP, SERVED, reused_min=8),
        # Upstream's own next steps write the rows of a batch whose copy is pending.
        _of("v2-loop-overlap", STAGING_V2, PLAIN, APART, hazard=True),
        _of("v2-loop-overlap-groups", STAGING_V2, GROUPS, LONG, hazard=True),
        _of("v2-loop-overlap-chunks", STAGING_V2, replace(GROUPS, chunked=True, budget=16), LONG, hazard=True),
        # The loop waits for the copies before each of its writers, where the engine says when they are made.
        _of("v2-loop-awaited", STAGING_V2, GROUPS, LONG, kind="v2-awaited", reused_min=8),
        _of("v2-loop-groups", ALL, replace(GROUPS, overlap=False), LONG, reused_min=8),
        _of("v2-loop-chunks", ALL, replace(GROUPS, overlap=False, chunked=True, budget=16), LONG),
        _of("v2-loop-suspended", ALL, TIGHT, CROWD, moves_min=2),
    ]


def _ends() -> list[Scenario]:
    return [
        _of("v2-loop-cancel", ALL, PLAIN_LOOP, SERVED, cancels={3: [2]}),
        _of("v2-loop-cancel-overlap", ALL, PLAIN, SERVED, hazard=True, cancels={3: [2]}),
        # In the plain loop, too: the error comes before anybody has waited for the batch.
        _of("v2-loop-fail", STAGING_V2, PLAIN_LOOP, SERVED, hazard=True, prepare=fails(1, 2), fails=(1,)),
        _of("v2-loop-fail-overlap", ALL, PLAIN, SERVED, hazard=True, prepare=fails(1, 2), fails=(1,)),
        _of("v2-loop-recompute", ALL, PLAIN_LOOP, SERVED, prepare=recomputes(1, 4)),
        _of("v2-loop-recompute-overlap", ALL, PLAIN, SERVED, hazard=True, prepare=recomputes(1, 4)),
    ]


def _connected() -> list[Scenario]:
    recorded: dict[str, Any] = {"connector": "recorder"}
    return [
        _of("v2-loop-recorder", ALL, PLAIN_LOOP, SERVED, **recorded),
        _of("v2-loop-recorder-overlap", ALL, PLAIN, SERVED, hazard=True, **recorded),
        _of("v2-loop-recorder-groups", ALL, replace(GROUPS, overlap=False), LONG, **recorded),
        _of("v2-loop-recorder-awaited", ALL, PLAIN, SERVED, kind="v2-awaited", **recorded),
        _of("v2-loop-ours", ALL, PLAIN_LOOP, SERVED, connector="ours"),
        # Ours refuses groups that slide.
        _of("v2-loop-ours-groups", ALL, replace(PLAIN_LOOP, windows=(64, 72)), LONG, connector="ours"),
        _of("v2-loop-ours-awaited", ALL, PLAIN, LONG, kind="v2-awaited", connector="ours"),
    ]


def _of(name: str, fix: str, shape: Any, arrivals: Any, *, hazard: bool = False, **given: Any) -> Scenario:
    return Scenario(name, fix, hazard, shape, arrivals, **({"kind": "v2", "eras": ("N", "O")} | given))


def fails(request_id: int, at_sample: int) -> Any:
    """A request meets an error of its own, where upstream looks for those of guided decoding."""

    def prepare(server: Server) -> None:
        executor, count = server.executor, 0

        def _handle_guided_decoder_errors(_batch: Any, _failed: Any) -> None:
            nonlocal count
            count += 1
            chosen = [each for each in executor.active_requests if each.py_request_id == request_id]
            if count == at_sample:
                executor._handle_errors("of this request alone", requests=chosen, charge_budget=False)

        executor._handle_guided_decoder_errors = _handle_guided_decoder_errors

    return prepare


def recomputes(request_id: int, at_schedule: int) -> Any:
    """The scheduler takes the pages of a request, which will be computed again."""

    def prepare(server: Server) -> None:
        schedule, count = server.executor._schedule, 0

        def _schedule() -> Any:
            nonlocal count
            count += 1
            batch, *others = schedule()
            if count == at_schedule:
                chosen = [each for each in batch.generation_requests if each.py_request_id == request_id]
                batch.generation_requests = [each for each in batch.generation_requests if each not in chosen]
                batch.recompute_paused_requests = chosen
            return batch, *others

        server.executor._schedule = _schedule

    return prepare
