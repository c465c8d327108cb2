"""Failures at each step of a transfer, planted where they happen."""

from collections.abc import Callable

import pytest

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import DeviceError, Mark, TransferLane, fail_operation
from trtllm_kvfix.offload.transfers import Addresses, Transfers

from .conftest import Bench

Fault = Callable[[pytest.MonkeyPatch, Bench, str], None]
Enqueue = Callable[..., str]


class Lane:
    """A lane with one method replaced; the thread behind it is the real one."""

    def __init__(self, lane: TransferLane, enqueue: Callable[[TransferLane, Enqueue], Enqueue]) -> None:
        self._lane = lane
        self.enqueue = enqueue(lane, lane.enqueue)

    def __getattr__(self, name: str) -> object:
        return getattr(self._lane, name)


def transfers_of(bench: Bench) -> Transfers:
    transfers = bench.worker.side._transfers
    assert isinstance(transfers, Transfers)
    return transfers


def replace_enqueue(bench: Bench, direction: str, make: Callable[[TransferLane, Enqueue], Enqueue]) -> None:
    transfers, name = transfers_of(bench), f"_{direction}s"
    setattr(transfers, name, Lane(getattr(transfers, name), make))


def mark_is_refused(patch: pytest.MonkeyPatch, bench: Bench, direction: str) -> None:  # noqa: ARG001  both meet it
    def mark(self: Transfers, stream: int) -> Mark:  # noqa: ARG001
        raise DeviceError("no event is left")

    patch.setattr(Transfers, "mark", mark)


def queue_is_full(patch: pytest.MonkeyPatch, bench: Bench, direction: str) -> None:  # noqa: ARG001
    def make(_lane: TransferLane, _enqueue: Enqueue) -> Enqueue:
        return lambda *_arguments, **_options: "full"

    replace_enqueue(bench, direction, make)


def lane_is_closed(patch: pytest.MonkeyPatch, bench: Bench, direction: str) -> None:  # noqa: ARG001
    assert getattr(transfers_of(bench), f"_{direction}s").close(10)


def submission_is_refused(patch: pytest.MonkeyPatch, bench: Bench, direction: str) -> None:  # noqa: ARG001
    """The stream of the lane breaks before it is given the copy, so that the copy is refused at the call."""

    def make(_lane: TransferLane, enqueue: Enqueue) -> Enqueue:
        def refused(job: int, dst: Addresses, src: Addresses, nbytes: Addresses, **options: Mark) -> str:
            return enqueue(job, dst * 0 + 1, src, nbytes, **options)

        return refused

    replace_enqueue(bench, direction, make)


def copy_fails(patch: pytest.MonkeyPatch, bench: Bench, direction: str) -> None:  # noqa: ARG001
    """The device takes the copy, and fails when its turn comes."""
    transfers = transfers_of(bench)

    def make(lane: TransferLane, enqueue: Enqueue) -> Enqueue:
        def failing(job: int, dst: Addresses, src: Addresses, nbytes: Addresses, **options: Mark) -> str:
            for running in transfers.running():
                # So that the next operation is this transfer's, on a stream that is whole.
                assert running.lane is not None and running.lane.wait(running.job.number, 30)
            submitted = lane.stats().submitted
            fail_operation(bench.device, 1)
            answer = enqueue(job, dst, src, nbytes, **options)
            while answer == "taken" and lane.stats().submitted == submitted:
                pass  # until the copy has been given to the device, and the next operation is somebody else's
            return answer

        return failing

    replace_enqueue(bench, direction, make)


FAULTS: dict[str, Fault] = {
    "the mark is refused": mark_is_refused,
    "the queue is full": queue_is_full,
    "the lane is closed": lane_is_closed,
    "the submission is refused": submission_is_refused,
    "the copy fails": copy_fails,
}


def transfers_missed() -> float:
    """Counts of blocks, transfers and requests that show that a transfer did not happen."""
    told = (counters.offload_errors, counters.offload_dropped_blocks, counters.offload_recomputed_requests)
    return sum(counter.value for counter in told)


def heal(bench: Bench) -> None:
    """Take planted methods out again."""
    transfers = transfers_of(bench)
    for name in ("_stores", "_loads"):
        lane = getattr(transfers, name)
        setattr(transfers, name, getattr(lane, "_lane", lane))
