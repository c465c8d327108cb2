"""A request whose reserved load failed computes it, once."""

from typing import Any

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.patches import computing_what_did_not_come

from .conftest import Bench, MakeBench
from .test_promises import prompt
from .upstream_double import Request


class Manager:
    """The part of upstream's connector manager that finishes loads."""

    def __init__(self, bench: Bench, requests: list[Request], ending: list[Request]) -> None:
        self.worker = bench.worker
        self.requests = {request.request_id: request for request in requests}
        self._prefix_load_requests = {request.request_id: request for request in requests}
        self._finished_load_terminations = ending
        self.freed: list[int] = []
        self.worker.choosers.room.manager = self
        self.kv_cache_map: dict[int, Any] = {}
        self.tokens_per_block = 4

    def free_resources(self, request: Request) -> None:
        self.freed.append(request.request_id)

    def finish(self, reservation_ids: list[int]) -> None:
        for number in reservation_ids:
            self._prefix_load_requests.pop(number - 100)


def test_a_request_whose_load_failed_computes_unless_it_is_ending(make_bench: MakeBench) -> None:
    bench = make_bench()
    requests = [Request(number, prompt(number)) for number in (2, 3, 4)]
    for request in requests:
        request.context_current_position = 20
    manager = Manager(bench, requests, ending=[requests[1]])
    bench.worker.side.reserved_to_recompute.update({102: 2, 103: 3})
    before = counters.offload_recomputed_requests.value
    computing_what_did_not_come(Manager.finish)(manager, [102, 103, 104])
    assert manager.freed == [2]
    assert [request.context_current_position for request in requests] == [0, 20, 20]
    assert bench.worker.reservations_to_recompute == {}
    assert counters.offload_recomputed_requests.value == before + 1
    assert bench.scheduler.reserve_prefix(requests[0], 0, 9) == (0, False), "once is enough"
