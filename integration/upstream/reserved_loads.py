"""Our own connector where the newest V2 manager reserves prefixes while it schedules: whatever becomes of a request,
what was reserved for it in the host tier is free again at the end."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.failed_loads import COMES_BACK, SMALL, V2, WAIT_S, fail_loads
from integration.upstream.scenarios import ALL, Scenario, prompt
from integration.upstream.server import Outcome, Server
from trtllm_kvfix.offload.ledger import StoreJob

OURS: dict[str, Any] = V2 | {"connector": "ours"}
# The third comes while the second has most pages, and is reserved for in every iteration in which it waits.
WAITS = (COMES_BACK[0], Arrival(2, prompt(100, 48), 8, at=8), replace(COMES_BACK[2], at=10))
AGAIN = (*WAITS, Arrival(4, prompt(0, 32), 3, at=32))


def reserved_loads() -> list[Scenario]:
    return [
        _of("v2-ours-reserved", COMES_BACK, reused_min=28),
        _of("v2-ours-reserved-waits", WAITS, _waited, reused_min=28),
        _of("v2-ours-reserved-waits-cancelled", AGAIN, _waited, cancels={12: [3]}, reused_min=28),
        _of("v2-ours-reserved-taken-back", COMES_BACK, _taken_back, reused_min=28),
        _of("v2-ours-reserved-forgotten", COMES_BACK, _forgotten, recomputed_min=1),
        # Upstream queries as before where an executor does not reserve.
        _of("v2-ours-queried", COMES_BACK, _queried, reused_min=28),
        _of("v2-ours-queried-load-fails", COMES_BACK, _queried_and_fails, recomputed_min=1),
        Scenario("v2-capacity-only", ALL, False, SMALL, COMES_BACK, prepare=_capacity_only, connector="recorder", **V2),
    ]


def _capacity_only(server: Server) -> None:
    """A connector that moves nothing and answers nothing, except for what a scenario sets at the start."""
    connector = server.connector
    connector.capacity_only = True
    connector.configure_prefix_reservations(enabled=True)
    asked = list[str]()
    for name in ("get_num_new_matched_tokens", "build_connector_meta", "update_state_after_alloc", "request_finished"):
        setattr(connector.scheduler, name, lambda *_, name=name: asked.append(name))
    _remark_unless(server, lambda: not asked, "a connector of capacity alone was asked")


def _of(name: str, arrivals: Any, plant: Callable[[Server], None] = lambda _: None, **given: Any) -> Scenario:
    def prepare(server: Server) -> None:
        _look_for_what_is_left(server)
        _carry_contents(server)
        plant(server)

    return Scenario(name, ALL, False, SMALL, arrivals, prepare=prepare, **OURS, **given)


def _carry_contents(server: Server) -> None:
    """Transfers end in the iteration that begins them, since a loop without a batch waits for no device and is over
    before them. What lies in the cache goes along."""
    transfers = server.connector.worker.side._transfers
    ended = transfers.take_ended

    def take_ended() -> Any:
        server.device.release()
        begun = {running.job.number: running.job for running in transfers.running()}
        for running in transfers.running():
            running.lane.wait(running.job.number, WAIT_S)
        found = ended()
        for job in [begun[each.job] for each in found if each.job in begun and not each.error]:
            for block, slot in zip(job.blocks, job.slots, strict=True):
                if isinstance(job, StoreJob):
                    server.engine.contents.transfer("offload", SMALL.windows[0], block, slot)
                else:
                    server.engine.contents.transfer("onboard", SMALL.windows[0], slot, block)
        return found

    transfers.take_ended = take_ended


def _look_for_what_is_left(server: Server) -> None:
    """Looks at the connector's books, once all requests are answered."""
    look = server._look

    def _look(outcome: Outcome) -> None:
        look(outcome)
        worker, scheduler = server.connector.worker.side, server.connector.scheduler.side
        for running in worker._transfers.running():
            running.lane.wait(running.job.number, WAIT_S)
        worker.finished([], [])
        scheduler._take_ended()
        left = {
            "reservations": len(scheduler._loads.reservations) + len(scheduler.ledger),
            "requests": len(scheduler._live),
            "host blocks": scheduler.index.stats().owned,
            "upstream's reservations": len(server.connector._prefix_reservations),
            "upstream's loads": len(server.connector._prefix_loads),
        }
        outcome.remarks += [f"{count} {what} are left" for what, count in left.items() if count]

    vars(server)["_look"] = _look


def _remark_unless(server: Server, is_so: Callable[[], bool], otherwise: str) -> None:
    look = server._look

    def _look(outcome: Outcome) -> None:
        look(outcome)
        outcome.remarks += [] if is_so() else [otherwise]

    vars(server)["_look"] = _look


def _waited(server: Server) -> None:
    """A promise is given back in the iteration that makes it, and made anew in the next. By default nobody is resumed
    in a pool as full as this one, and nobody would wait."""
    server.manager.impl.max_util_for_resume = 1.0
    side, released = server.connector.scheduler, []
    release = side.release_prefix_reservation

    def release_prefix_reservation(request: Any, reservation_id: int, start: int, end: int) -> None:
        if reservation_id in server.connector._prefix_reservations or request.request_id == 3:
            released.append(reservation_id)
        release(request, reservation_id, start, end)

    side.release_prefix_reservation = release_prefix_reservation
    _remark_unless(server, lambda: len(set(released)) > 1, "nobody waited with a reservation")


def _taken_back(server: Server) -> None:
    """The batch is dropped once its step has been reported, before its loads may begin; its request comes back."""
    connector, manager = server.connector, server.manager
    rewind = vars(sys.modules[type(manager).__module__])["rewind_context_after_cache_drop"]
    dispatch, seen = connector.mark_prefix_loads_dispatched, list[int]()
    states = server.batch_manager.LlmRequestState

    def mark_prefix_loads_dispatched() -> None:
        request = connector._prefix_load_requests.get(3)
        if request is not None and not seen and connector._bound_prefix_load_ids:
            seen.append(request.state == states.DISAGG_GENERATION_TRANS_IN_PROGRESS)
            request.state = states.CONTEXT_INIT
            manager.free_resources(request)
            rewind(request, manager.tokens_per_block)
        dispatch()

    connector.mark_prefix_loads_dispatched = mark_prefix_loads_dispatched
    _remark_unless(server, lambda: seen == [True], f"no load was taken back: {seen}")


def _forgotten(server: Server) -> None:
    """Our side has let go of a request whose load upstream accepts afterwards: it must not wait for ever."""
    side, seen = server.connector.scheduler.side, list[int]()
    build = side.build_connector_meta

    def build_connector_meta(output: Any) -> Any:
        if output is not None and output.prefix_loads and not seen:
            seen.append(output.prefix_loads[0].request_id)
            side.request_over(seen[0], blocks_stay=True)
        return build(output)

    side.build_connector_meta = build_connector_meta
    _remark_unless(server, lambda: bool(seen), "no load was accepted")


def _queried(server: Server) -> None:
    server.connector.configure_prefix_reservations(enabled=False)


def _queried_and_fails(server: Server) -> None:
    _queried(server)
    fail_loads(server.connector.worker.side._transfers)
