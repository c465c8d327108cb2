"""The processes of the remote tier and the lanes share one limit when the connector ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.offload.faults import transfers_of
from trtllm_kvfix.offload import transfers
from trtllm_kvfix.offload import worker as local_worker
from trtllm_kvfix.offload.remote import worker

from .conftest import MakeRemote

LIMIT_S = 9.0


class Clock:
    """Only those who wait make it go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.given: list[float] = []  # how long each may wait
        for module in (transfers, local_worker, worker):
            patch.setattr(module, "monotonic", lambda: self.now)

    def spend(self, wait_s: float, takes_s: float) -> bool:
        self.given.append(wait_s)
        self.now += min(wait_s, takes_s)
        return takes_s <= wait_s


@pytest.mark.parametrize(
    ("takes_s", "given"), [(0.0, [9.0, 9.0, 9.0, 9.0]), (4.0, [9.0, 5.0, 1.0, 1.0]), (6.0, [9.0, 3.0, 0.001, 0.001])]
)
def test_processes_and_lanes_end_within_one_limit(
    takes_s: float, given: list[float], make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_remote(shutdown_timeout_s=LIMIT_S, remote_segment_bytes=16 << 20)
    clock, side = Clock(monkeypatch), bench.worker.side
    for process in (side.carrier.porter, side.carrier.holder):
        process.close = lambda wait_s: clock.spend(wait_s, takes_s)

    def noting(lane: Any) -> Any:
        return SimpleNamespace(close=lambda wait_s: clock.spend(wait_s, 0.0) and lane.close(LIMIT_S))

    here = transfers_of(bench)
    here._stores, here._loads = noting(here._stores), noting(here._loads)
    assert bench.worker.shutdown()
    assert clock.given == given
