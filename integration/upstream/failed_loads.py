"""Loads of our own connector that fail: their requests compute what was to come, on V1 and on the newest V2 manager."""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.scenarios import ALL, PLAIN, Scenario, prompt
from integration.upstream.server import Server

# Room for one of these prompts at a time, so the first is gone when it comes again.
SMALL = replace(PLAIN, overlap=False, blocks=16, max_seq_len=64, windows=(64,))
COMES_BACK = (
    Arrival(1, prompt(0, 32), 3),
    Arrival(2, prompt(100, 48), 2, at=8),
    Arrival(3, prompt(0, 32), 3, at=16),
)
V2: dict[str, Any] = {"kind": "v2", "eras": ("N", "O")}
WAIT_S = 10.0


def failed_loads() -> list[Scenario]:
    chunked = replace(SMALL, chunked=True, budget=16)
    return [
        _of("ours-load-fails", SMALL, eras=("A", "S", "B2", "D")),
        # One owner of its requests: upstream asks and reports without its communicator.
        _of("ours-attention-dp", SMALL, eras=("D",), connector="ours-attention-dp"),
        _of("v2-ours-load-fails", SMALL, **V2),
        _of("v2-ours-load-fails-chunked", chunked, **V2),
        _of("v2-ours-load-fails-by-request", SMALL, by_request=True, **V2),
        _of("v2-ours-load-fails-chunked-by-request", chunked, by_request=True, **V2),
        *_ended(),
    ]


def _ended() -> list[Scenario]:
    """The third ends while it loads; the fourth has its prompt, and must find nothing that nobody wrote."""
    early = (*COMES_BACK, Arrival(4, prompt(0, 32), 3, at=32))
    beside = (*early, Arrival(5, prompt(300, 4), 16, at=14))  # there is a batch while it loads
    given: dict[str, Any] = {"connector": "ours", "cancels": {18: [3]}}
    v1 = given | {"eras": ("A", "S", "B2", "D")}

    def cancelled(server: Server) -> None:
        transfers = server.connector.worker.side._transfers
        fail_loads(transfers, polls=6)

    def failing(server: Server) -> None:
        cancelled(server)
        fail_while_loading(server, 3)

    return [
        Scenario("ours-cancelled", ALL, False, SMALL, early, prepare=cancelled, **v1),
        Scenario("v2-ours-cancelled", ALL, False, SMALL, early, prepare=cancelled, **(given | V2)),
        Scenario("v2-ours-fails", ALL, False, SMALL, beside, prepare=failing, fails=(3,), connector="ours", **V2),
    ]


def fail_while_loading(server: Server, request_id: int) -> None:
    """The executor ends a request with an error, in the iteration after its load has begun."""
    executor, seen = server.executor, 0

    def _handle_guided_decoder_errors(_batch: Any, _failed: Any) -> None:
        nonlocal seen
        connector = server.connector
        loading = connector.pending_async_requests.loading | getattr(connector, "_prefix_load_requests", {})
        seen += request_id in loading
        if request_id in loading and seen == 2:
            executor._handle_errors("of this request alone", requests=[loading[request_id]], charge_budget=False)

    executor._handle_guided_decoder_errors = _handle_guided_decoder_errors


def _of(name: str, shape: Any, *, by_request: bool = False, **given: Any) -> Scenario:
    def prepare(server: Server) -> None:
        if by_request:  # history is moved with each chunk
            manager = server.manager
            manager.block_reuse_policy = type(manager.block_reuse_policy).PER_REQUEST
        fail_loads(server.connector.worker.side._transfers)

    return Scenario(
        name, ALL, False, shape, COMES_BACK, prepare=prepare, recomputed_min=1, **({"connector": "ours"} | given)
    )


def fail_loads(transfers: Any, polls: int = 0) -> None:
    """Fails each load after a number of polls of the worker."""
    enqueue = transfers._enqueue
    waiting: dict[Any, int] = {}

    def enqueue_stores(job: Any, direction: str, lane: Any, mark: Any) -> None:
        if direction == "store":
            enqueue(job, direction, lane, mark)
        else:
            waiting[job] = polls

    def take_ended() -> Any:
        """Nothing here is about a store that takes longer than the next request."""
        for running in transfers.running():
            running.lane.wait(running.job.number, WAIT_S)
        for job in list(waiting):
            waiting[job] -= 1
            if waiting[job] < 0:
                del waiting[job]
                transfers.refuse([job], "planted")
        return ended()

    ended = transfers.take_ended
    transfers._enqueue, transfers.take_ended = enqueue_stores, take_ended
