"""What we change in upstream about requests that end and loads that fail, because upstream has no callback there.

A request that has ended keeps its blocks until no transfer uses them (`KeptBlocks`). A request whose load failed
computes those tokens instead.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.living import Living
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.faults import Tried, guarded
from trtllm_kvfix.offload.upstream import is_v2
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER, Upstream

KEPT_BLOCKS = "offload-kept-blocks"
FREE_RESOURCES = Seam(RESOURCE_MANAGER, "ResourceManager.free_resources")


@dataclass(frozen=True, eq=False)
class Kept:
    request: Any
    state: Any  # upstream treats a request whose load is over as one that waits, even if it has been cancelled
    was_loading: bool
    manager: Any


class Transferring(Protocol):
    """The methods of the worker side that this module calls."""

    def requests_in_transfer(self) -> Collection[int]: ...
    def request_over(self, request_id: int) -> None: ...
    def end_transfers(self, request_id: int) -> None: ...
    def end_transfers_here(self, request_id: int) -> None: ...


class KeptBlocks:
    """Requests that have ended keep their blocks until no transfer uses them.

    Upstream gives the blocks away sooner. 1.1 and 1.2 end a finished request at once, even while its blocks are being
    saved. Every release does so with a request that is cancelled or fails, even while its blocks are saved or loaded.
    Then upstream may copy a prefix into them, a dummy request may write them, and the connector learns of neither.

    On V1 the sequence is kept, as later releases do with requests that are being saved. V2 has a place for as many
    sequences as run, so there the host waits for the transfers, which are those of the last iterations. It also waits
    if our own code fails here; and if not even that succeeds, the blocks stay taken.

    The executor's thread alone uses it, on every rank for the same requests at the same points.
    """

    def __init__(self, transfers: Transferring) -> None:
        self._transfers = transfers
        self._kept: dict[int, Kept] = {}
        _keepers.add(self)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._kept

    def keeps(self, connector: Any, manager: Any, request: Any) -> bool:
        """Whether `let_go` frees the blocks of this request later. It does so for a request that upstream ends."""
        request_id = request.py_request_id
        self._transfers.request_over(request_id)
        if request_id in self._kept:
            return True
        if not self._is_busy(connector, request_id):
            return False
        if is_v2(manager):
            self._transfers.end_transfers(request_id)
            # Late managers refuse to give blocks away while they believe that the request loads.
            for place in PLACES:
                getattr(getattr(connector, place, None), "loading", {}).pop(request_id, None)
            end_loads(connector, request)
            return False
        loads = request_id in ids(connector, "loading")
        self._kept[request_id] = Kept(request, request.state, loads, manager)
        return True

    def waits_instead(self, request: Any) -> bool:
        """Wait, after a fault, for this rank's transfers. True if none uses the request's blocks, or ever will."""
        try:
            self._transfers.end_transfers_here(request.py_request_id)
        except KvfixError:
            raise
        except Exception as error:
            fuse.of(KEPT_BLOCKS).fault(error)
            return False
        return True

    def let_go(self, connector: Any) -> None:
        """Called when all ranks know which transfers have ended. A fault of ours leaves the rest for the next time."""
        for kept in self._ended(connector):
            del self._kept[kept.request.py_request_id]
            with nothing_stored(kept):
                kept.manager.free_resources(kept.request)

    def _ended(self, connector: Any) -> list[Kept]:
        found: list[Kept] = []
        if self._kept:
            with guarded(KEPT_BLOCKS):
                found += [kept for each, kept in self._kept.items() if not self._is_busy(connector, each)]
                for kept in [each for each in found if each.was_loading]:
                    connector.finished_async_loading_requests.pop(kept.request.py_request_id, None)
                    kept.request.state = kept.state
        return found

    def _is_busy(self, connector: Any, request_id: int) -> bool:
        transferred = (ids(connector, "saving"), ids(connector, "loading"), self._transfers.requests_in_transfer())
        return any(request_id in each for each in transferred)


def end_loads(connector: Any, request: Any) -> None:
    """Upstream ends a request whose transfers are over on all ranks, but refuses to while it still waits for one."""
    loads = getattr(connector, "_prefix_loads", {})
    begun = [
        number
        for number, load in loads.items()
        if load.request_id == request.py_request_id and number in connector._dispatched_prefix_load_ids
    ]
    if not begun:
        return  # upstream itself takes back what has not begun
    for number in begun:
        connector.worker.reservations_to_recompute.pop(number, None)
    connector._local_finished_prefix_load_ids.update(begun)
    state = request.state
    connector.finish_prefix_loads(begun)
    request.state = state
    connector.finished_async_loading_requests.pop(request.py_request_id, None)


def ids(connector: Any, kind: str) -> set[int]:
    """The ids of requests that upstream's connector manager believes to be saving, or loading."""
    return {request_id for place in PLACES for request_id in getattr(getattr(connector, place, None), kind, ())}


@contextmanager
def nothing_stored(kept: Kept) -> Iterator[None]:
    """Upstream stores nothing of a dummy. A prompt that was loading was not computed, and its load may have failed."""
    if not kept.was_loading:
        yield
        return
    kept.request.is_dummy_request = True
    try:
        yield
    finally:
        kept.request.is_dummy_request = False


class Freeing(NamedTuple):
    stays: bool  # the manager is not to be asked now
    manager: Any = None


_keepers: Living[KeptBlocks] = Living()


def keeping_blocks(original: Callable[..., Any]) -> Callable[..., Any]:
    def free_resources(self: Any, request: Any) -> Any:
        answer = Freeing(stays=False)
        tried = Tried(failed=fuse.of(KEPT_BLOCKS).blown)
        if not tried.failed:
            with guarded(KEPT_BLOCKS) as tried:
                answer = ask(self, request)
        if tried.failed and not all(each.waits_instead(request) for each in keepers_of(self)):
            return None
        if not answer.stays:
            return original(self, request)
        for each in reversed(list(self.resource_managers.values())):
            if each is not answer.manager and hasattr(each, "free_resources"):
                each.free_resources(request)
        return None

    return free_resources


def ask(resource_manager: Any, request: Any) -> Freeing:
    manager = manager_with_connector(resource_manager)
    connector: Any = getattr(manager, "kv_connector_manager", None)
    kept = keeper(connector)
    if kept is None or not is_over(connector, request):
        return Freeing(stays=False)
    return Freeing(kept.keeps(connector, manager, request), manager)


def keeper(connector: Any) -> KeptBlocks | None:
    found = getattr(getattr(connector, "worker", None), "kept", None)
    return found if isinstance(found, KeptBlocks) else None


def keepers_of(resource_manager: Any) -> list[KeptBlocks]:
    """Return the keeper of this engine, after a fault all that there are if it cannot be found. Another engine's
    request may have the same id."""
    try:
        found = keeper(manager_with_connector(resource_manager).kv_connector_manager)
    except Exception:
        found = None
    return _keepers.all() if found is None else [found]


def manager_with_connector(resource_manager: Any) -> Any:
    managers = resource_manager.resource_managers.values()
    return next((each for each in managers if getattr(each, "kv_connector_manager", None) is not None), None)


def is_over(connector: Any, request: Any) -> bool:
    """Whether the request ends for good. A paused one returns under its number, so its sequence cannot be kept."""
    return bool(request.is_generation_complete_state) or request.py_request_id in ids(connector, "saving")


# A request whose load failed computes those tokens instead.
#
# Upstream knows only loads that succeed: when one is over, its request continues behind the tokens that it was
# promised. So when upstream lets such a request continue, every rank puts its position back to where it was before.
#
# A V2 cache has a mark of its own behind those tokens, which never moves back. There the request gives its cache back
# and begins again, as with upstream when a promised prefix does not come.
LOADS_NO_MORE = "py_kvfix_loads_no_more"  # the name of an attribute of requests
GET_FINISHED = "KvCacheConnectorManager.get_finished"
FINISH_PREFIX_LOADS = "KvCacheConnectorManager.finish_prefix_loads"
PLACES = ("new_async_requests", "pending_async_requests", "local_finished_async_requests")


class LoadFailed(KvfixError):
    """A load failed, and this version of upstream offers no way to compute its tokens instead."""


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


def replacements(connector_module: str) -> list[Replacement]:
    """Have upstream ask whether blocks may go, and its connector manager whether loads have come."""
    found = [
        Replacement(FREE_RESOURCES, keeping_blocks),
        Replacement(Seam(connector_module, GET_FINISHED), computing_failed_loads),
    ]
    if Upstream().has(connector_module, FINISH_PREFIX_LOADS):
        found.append(Replacement(Seam(connector_module, FINISH_PREFIX_LOADS), computing_what_did_not_come))
    return found
