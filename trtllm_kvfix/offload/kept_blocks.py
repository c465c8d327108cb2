"""Blocks of requests that are over stay theirs until no transfer uses them.

Upstream gives them away sooner. 1.1 and 1.2 end a request at once when it is done, though its blocks are still being
saved, and every release does so when it is cancelled or fails, though they are saved or loaded. Then a prefix may be
copied into them, a dummy request may write them, and nobody tells the connector.

V1 keeps the sequence, as later releases do with requests that are being saved. V2 has a place for as many sequences as
run, so there the host waits for the transfers, which are those of the last iterations.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from trtllm_kvfix.offload.recompute import PLACES
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER

SEAM = Seam(RESOURCE_MANAGER, "ResourceManager.free_resources")


@dataclass(frozen=True, eq=False)
class Kept:
    request: Any
    state: Any  # upstream takes a request whose load is over for one that waits, dead or not
    was_loading: bool
    manager: Any  # None: its blocks have been given back


class KeptBlocks:
    """The executor's thread alone uses it, on every rank for the same requests at the same points."""

    def __init__(self, requests_in_transfer: Callable[[], Iterable[int]], wait_for: Callable[[int], None]) -> None:
        self._requests_in_transfer = requests_in_transfer
        self._wait_for = wait_for
        self._kept: dict[int, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keeps(self, connector: Any, manager: Any, request: Any) -> bool:
        """Whether the manager is to be asked later, by `let_go`: for the blocks of a request that upstream ends."""
        request_id = request.py_request_id
        if request_id in self._kept:
            return self._kept[request_id].manager is not None
        if not self._is_busy(connector, request_id):
            return False
        waits = hasattr(manager, "kv_cache_map")
        if waits:
            self._wait_for(request_id)
        loads = request_id in ids(connector, "loading")
        self._kept[request_id] = Kept(request, request.state, loads, None if waits else manager)
        return not waits

    def let_go(self, connector: Any) -> None:
        """Once what has ended is known on all ranks."""
        free = [request_id for request_id in self._kept if not self._is_busy(connector, request_id)]
        for kept in [self._kept.pop(request_id) for request_id in free]:
            if kept.was_loading:
                connector.finished_async_loading_requests.pop(kept.request.py_request_id, None)
                kept.request.state = kept.state
            if kept.manager is not None:
                with nothing_stored(kept.request) if kept.was_loading else nullcontext():
                    kept.manager.free_resources(kept.request)

    def _is_busy(self, connector: Any, request_id: int) -> bool:
        transferred = (ids(connector, "saving"), ids(connector, "loading"), self._requests_in_transfer())
        return any(request_id in each for each in transferred)


def ids(connector: Any, kind: str) -> set[int]:
    """Of requests that upstream's connector manager takes for saving, or for loading."""
    return {request_id for place in PLACES for request_id in getattr(getattr(connector, place, None), kind, ())}


@contextmanager
def nothing_stored(request: Any) -> Iterator[None]:
    """A release keeps nothing of dummies for reuse. This one was not computed, and its load may have failed."""
    request.is_dummy_request = True
    try:
        yield
    finally:
        request.is_dummy_request = False


def replacement() -> Replacement:
    """Have upstream ask whether blocks may go."""
    return Replacement(SEAM, asking_the_worker)


def asking_the_worker(original: Callable[..., Any]) -> Callable[..., Any]:
    def free_resources(self: Any, request: Any) -> Any:
        manager = manager_with_connector(self)
        connector: Any = getattr(manager, "kv_connector_manager", None)
        kept = getattr(getattr(connector, "worker", None), "kept", None)
        if not isinstance(kept, KeptBlocks) or not is_over(connector, request):
            return original(self, request)
        forget = getattr(connector.scheduler, "request_over", None)
        if forget is not None:
            forget(request)
        if not kept.keeps(connector, manager, request):
            return original(self, request)
        for each in reversed(list(self.resource_managers.values())):
            if each is not manager and hasattr(each, "free_resources"):
                each.free_resources(request)
        return None

    return free_resources


def manager_with_connector(resource_manager: Any) -> Any:
    managers = resource_manager.resource_managers.values()
    return next((each for each in managers if getattr(each, "kv_connector_manager", None) is not None), None)


def is_over(connector: Any, request: Any) -> bool:
    """Rather than paused: then it comes back under its number, and its sequence cannot be kept."""
    return bool(request.is_generation_complete_state) or request.py_request_id in ids(connector, "saving")
