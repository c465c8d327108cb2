"""A request whose load failed computes those tokens instead.

Upstream knows only loads that succeed: when one is over, its request continues behind the tokens that it was promised.
So when upstream lets such a request continue, every rank puts its position back to where it was before.

A V2 cache has a mark of its own behind those tokens, which never moves back. There the request gives its cache back and
begins again, as with upstream when a promised prefix does not come.
"""

import sys
from collections.abc import Callable
from typing import Any

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.upstream import is_v2
from trtllm_kvfix.overlay.fix import Replacement, Seam

LOADS_NO_MORE = "py_kvfix_loads_no_more"  # the name of an attribute of requests
GET_FINISHED = "KvCacheConnectorManager.get_finished"
FINISH_PREFIX_LOADS = "finish_prefix_loads"
PLACES = ("new_async_requests", "pending_async_requests", "local_finished_async_requests")


class LoadFailed(KvfixError):
    """A load failed, and this version of upstream offers no way to compute its tokens instead."""


def recompute_replacement(connector_module: str) -> Replacement:
    """Make upstream's connector manager ask its worker."""
    return Replacement(Seam(connector_module, GET_FINISHED), computing_failed_loads)


def computing_failed_loads(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def get_finished(self: Any) -> Any:
        recompute: dict[int, int] | None = getattr(getattr(self, "worker", None), "requests_to_recompute", None)
        if recompute is None:
            return original(self)
        loading = {request_id: one for place in PLACES for request_id, one in loading_in(self, place)}
        finished = original(self)
        for request_id in list(recompute):
            position = recompute.pop(request_id)
            if request_id not in self.worker.kept:  # it is over
                compute(self.worker.cache_manager, loading.get(request_id), request_id, position)
        self.worker.kept.let_go(self)
        return finished

    return get_finished


def loading_in(manager: Any, place: str) -> list[tuple[int, Any]]:
    return list(getattr(getattr(manager, place, None), "loading", {}).items())


def compute(manager: Any, request: Any, request_id: int, position: int) -> None:
    """Compute what was not loaded, from `position` on or from the beginning."""
    if request is None or not hasattr(request, "context_current_position"):
        raise LoadFailed(
            f"the load of request {request_id} failed, and its tokens from {position} on cannot be computed instead: "
            "upstream's connector manager keeps its requests where this version of trtllm-kvfix does not find them"
        )
    if is_v2(manager):
        begin_again(manager, request)
    else:
        put_back(request, position)
    counters.offload_recomputed_requests.add()


def begin_again(manager: Any, request: Any) -> None:
    """Begin again on V2, which asks the connector anew: it has nothing for this request."""
    setattr(request, LOADS_NO_MORE, True)
    manager.free_resources(request)
    rewind = vars(sys.modules[type(manager).__module__]).get("rewind_context_after_cache_drop")
    if rewind is not None:
        rewind(request, manager.tokens_per_block)
        return
    request.context_current_position = 0
    if hasattr(request, "set_prepopulated_prompt_len"):
        request.set_prepopulated_prompt_len(0, manager.tokens_per_block)
    request.context_chunk_size = request.prompt_len


def put_back(request: Any, position: int) -> None:
    request.context_current_position = position
    if hasattr(request, "context_remaining_length"):
        # If prompts are not chunked, upstream sets this only once: to the rest behind the load.
        request.context_chunk_size = request.context_remaining_length


def reserved_replacement(connector_module: str) -> Replacement:
    """Make upstream's connector manager ask whether the blocks that it believes to be loaded have come."""
    return Replacement(
        Seam(connector_module, f"KvCacheConnectorManager.{FINISH_PREFIX_LOADS}"), computing_what_did_not_come
    )


def computing_what_did_not_come(original: Callable[[Any, list[int]], None]) -> Callable[[Any, list[int]], None]:
    def finish_prefix_loads(self: Any, reservation_ids: list[int]) -> None:
        failed: dict[int, int] = getattr(getattr(self, "worker", None), "reservations_to_recompute", {})
        requests = [self._prefix_load_requests.get(failed.pop(each)) for each in reservation_ids if each in failed]
        original(self, reservation_ids)
        for request in requests:
            if request is not None and request not in self._finished_load_terminations:
                begin_again(self.worker.cache_manager, request)
                counters.offload_recomputed_requests.add()

    return finish_prefix_loads
