"""What we change in upstream about a batch before it runs, because upstream has no callback there.

The connector gets each request as a whole (`WholeRequests`), and the cache manager, whose copies into blocks loads must
follow. In a full pool, requests that load find room (`Room`). Whoever else has a say in which requests are scheduled
(`Chooser`) is asked there, too.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, Protocol

from trtllm_kvfix.living import Living
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ending_patches import ids
from trtllm_kvfix.offload.faults import guarded
from trtllm_kvfix.offload.upstream import is_v2
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, RESOURCE_MANAGER, SCHEDULER, Upstream
from trtllm_kvfix.overlay.vote import Voting, mapping_of
from trtllm_kvfix.ranks import Tag

ROOM_FOR_LOADS = "offload-room"
SCHEDULER_PLACES = (SCHEDULER, f"{SCHEDULER}.scheduler", f"{SCHEDULER}.unified_scheduler")
POLICIES = ("BindCapacityScheduler", "PyCapacityScheduler")
V2_PLACE, V2_SCHEDULER, V2_COUNTING_SCHEDULER = (
    f"{SCHEDULER}.scheduler_v2", "KVCacheV2Scheduler", "KVCacheV2DummyScheduler",
)  # fmt: skip
GIVES_WAY = "enable_recompute_pause"


class Chooser(Protocol):
    """Chooses from the active requests what upstream's scheduler sees: the same on every rank."""

    def shown(self, active: Sequence[Any]) -> Sequence[Any]: ...


class Room:
    """Room for requests that load: what they will grow into is nobody else's.

    Upstream starts a request when the blocks until its last token are free beside those that requests which generate
    may still take. Most releases look at nobody else. Requests that wait for a load, of any connector, hold the blocks
    of their prompts, and what they need besides goes to others. In a full pool they come back, find no room, and each
    waits for another of them to end.

    So while any request loads, or waits for its first step behind a load, those that have not started are shown to the
    scheduler only as far as all that have can still be finished. The others are kept from it altogether: it stops
    looking at the first request without room, and must not stop before one that has blocks. They keep their order. They
    wait no longer than the requests that load now, because no request that would start a new load overtakes them.

    A KVCacheManagerV2 promises no request the blocks until its end. Its scheduler takes them as it goes. In a full pool
    it takes them from a request that has started and waits for no load, and that request begins again. So there is
    nothing to keep.

    A `Room` is that of one cache manager, which upstream names later. The executor's thread alone uses it.
    """

    def __init__(self, fuse_of_room: Fuse, voting: Voting) -> None:
        self.manager: Any = None
        self._fuse = fuse_of_room
        self._voting = voting
        self._held_back: set[int] = set()

    def shown(self, active: Sequence[Any]) -> Sequence[Any]:
        """Return the active requests that the scheduler may choose from. They are the same on every rank."""
        if self._fuse.blown:
            return active
        self._voting.begin()
        try:
            held_back = [request.py_request_id for request in self._without_room(active)]
            may_hold_back = bool(held_back) and self._voting.may_change(mapping_of(self.manager))
        except Exception as error:
            self._fuse.fault(error)
            self._voting.abstain()
            return active
        self._fuse.in_a_row = 0
        if held_back and not (may_hold_back and self._voting.agree(held_back)):
            return active
        counters.offload_held_back_requests.add(len(set(held_back) - self._held_back))
        self._held_back = set(held_back)
        if not held_back:
            return active
        return [request for request in active if request.py_request_id not in self._held_back]

    def _without_room(self, active: Iterable[Any]) -> list[Any]:
        """Return the requests that wait to start, from the first one on for which no room is left."""
        connector = self.manager.kv_connector_manager
        loading, loaded = ids(connector, "loading"), connector.finished_async_loading_requests
        if not loading and not loaded:
            return []
        waiting, started, need_room = sorted_out(active, loading, loaded)
        if not waiting or not need_room:
            return []
        free = self.manager.impl.get_kv_cache_stats().num_free_blocks_per_window_size
        return waiting[min(self._fitting(waiting, started, window, blocks) for window, blocks in free.items()) :]

    def _fitting(self, waiting: list[Any], started: list[Any], window: int, free: int) -> int:
        """Count the waiting requests whose blocks suffice until their last token, beside those that have started."""
        remaining = self.manager.impl.get_remaining_blocks_to_completion
        left = free - sum(remaining(each, window) for each in started)
        for place, request in enumerate(waiting):
            left -= remaining(request, window)
            if left < 0:
                return place
        return len(waiting)


def sorted_out(
    active: Iterable[Any], loading: Iterable[int], loaded: Iterable[int]
) -> tuple[list[Any], list[Any], bool]:
    """Sort requests into waiting and started ones. True if upstream knows too little about one that has started."""
    waiting: list[Any] = []
    started: list[Any] = []
    need_room = False
    for request in active:
        if request.py_request_id in loading:
            started.append(request)
            need_room = True
        elif request.is_context_init_state:
            came_back = request.py_request_id in loaded
            has_begun = came_back or not request.is_first_context_chunk
            (started if has_begun else waiting).append(request)
            need_room |= came_back
        elif request.is_generation_in_progress_state:
            started.append(request)
    return waiting, started, need_room


def warn_where_nobody_gives_way(kv_cache_manager: Any) -> None:
    """An old scheduler of a KVCacheManagerV2 takes no blocks back, and any full pool starves, with loads or without."""
    init = Upstream().attribute(V2_PLACE, f"{V2_SCHEDULER}.__init__") if is_v2(kv_cache_manager) else None
    if init is not None and GIVES_WAY not in Upstream().parameters(init):
        log.warning(
            "%s of this TensorRT-LLM takes no blocks from requests that have started, and kv_cache_config."
            "host_cache_size must be 0: in a full pool all of them wait for ever. Set kv_cache_config.max_tokens to "
            "what max_batch_size requests need until their last token, or lower max_batch_size (docs/offload.md, "
            "Limits)", V2_SCHEDULER,
        )  # fmt: skip


class Choosers:
    """All that choose for one engine, in the same order on every rank. The executor's thread alone uses it."""

    def __init__(self, room: Room, others: Sequence[Chooser] = ()) -> None:
        self.room, self._others = room, others
        _engines.add(self)

    def shown(self, manager: Any, active: Sequence[Any]) -> Sequence[Any]:
        """`manager`: what the asking scheduler knows, which of a KVCacheManager is the bound half."""
        ours = self.room.manager
        is_bound = ours is not None and getattr(ours, "impl", None) is manager
        if is_bound or (ours is not None and ours is manager):
            for chooser in self._others:
                active = chooser.shown(active)
        return self.room.shown(active) if is_bound else active


_engines: Living[Choosers] = Living()


def room_here() -> Room:
    """The room of this process, which shares batches with the other ranks."""
    fuse_of_room = fuse.of(ROOM_FOR_LOADS)
    return Room(fuse_of_room, Voting(fuse_of_room, Tag.ROOM))


def choosing_replacements() -> list[Replacement]:
    """Have upstream's schedulers choose from what they are shown: those of its C++, of its Python, and of V2."""
    places = [(name, place) for name in POLICIES for place in reversed(SCHEDULER_PLACES)]
    places += [(name, V2_PLACE) for name in (V2_SCHEDULER, V2_COUNTING_SCHEDULER)]
    found = {name: place for name, place in places if is_python(place, name)}
    if not found.keys() & set(POLICIES):
        log.warning(
            "upstream's capacity scheduler was not found: no room is kept for requests that load, and there is nothing "
            "from a remote tier (docs/offload.md)"
        )
    return [Replacement(Seam(place, f"{name}.schedule_request"), choosing_from_shown) for name, place in found.items()]


def is_python(place: str, name: str) -> bool:
    """Some builds compile their Python; a compiled class takes no replacement."""
    method = inspect.getattr_static(Upstream().attribute(place, name), "schedule_request", None)
    return isinstance(method, FunctionType)


def choosing_from_shown(original: Callable[..., Any]) -> Callable[..., Any]:
    def schedule_request(self: Any, active_requests: Any, *args: Any, **kwargs: Any) -> Any:
        for choosers in _engines.all():
            active_requests = choosers.shown(getattr(self, "kv_cache_manager", None), active_requests)
        return original(self, active_requests, *args, **kwargs)

    return schedule_request


# The copies that upstream makes if a prompt matches the beginning of a block, and the loads that must come after them.
#
# Upstream enqueues them on streams of its own while it allocates, and lets the stream of its block manager wait for
# them. A connector gets another stream, which follows that one only from the next forward pass. A load that starts
# sooner writes a block that was cached a moment ago and is still being copied from. Then the copy has values of the
# load.
PARTIAL_COPIES = "offload-partial-copies"
START_BATCH = Seam(PY_EXECUTOR, "PyExecutor._kv_connector_start_batch")


def telling_the_worker(original: Callable[..., Any]) -> Callable[..., Any]:
    def _kv_connector_start_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        worker: Any = getattr(getattr(self, "kv_connector_manager", None), "worker", None)
        if hasattr(worker, "note_cache_manager"):
            with guarded(PARTIAL_COPIES) as told:
                worker.note_cache_manager(self.kv_cache_manager)
            worker.copies_unknown = told.failed
        return original(self, *args, **kwargs)

    return _kv_connector_start_batch


def stream_behind_copies(kv_cache_manager: Any) -> Any:
    """Return the stream of its block manager. None if we know of none: V1 and V2 have had one since 1.1."""
    return getattr(kv_cache_manager, "_stream", None)


WHOLE_REQUESTS = "offload-whole-requests"
PREPARE_RESOURCES = Seam(RESOURCE_MANAGER, "KVCacheManager.prepare_resources")


class WholeRequests:
    """The requests of a batch as the executor has them.

    V1 asks for a prefix from C++, with the bound part of a request. That part lacks what Python keeps: the data of
    images. So the connector notes the requests that are about to be prepared, and looks there. The executor's thread
    alone uses it.
    """

    def __init__(self) -> None:
        self._requests: dict[int, Any] = {}

    def note(self, scheduled: Any) -> None:
        self._requests = {request.py_request_id: request for request in scheduled.context_requests}

    def whole(self, request: Any) -> Any:
        return self._requests.get(request.request_id, request)


def noting_the_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def prepare_resources(self: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
        batch = getattr(getattr(getattr(self, "kv_connector_manager", None), "scheduler", None), "batch", None)
        if isinstance(batch, WholeRequests):
            with guarded(WHOLE_REQUESTS):  # after a fault the requests stay opaque
                batch.note(scheduled_batch)
        return original(self, scheduled_batch, *args, **kwargs)

    return prepare_resources


def replacements() -> list[Replacement]:
    """Have upstream pass whole requests and its cache manager to the connector, and schedule what has room."""
    return [
        Replacement(START_BATCH, telling_the_worker),
        Replacement(PREPARE_RESOURCES, noting_the_batch),
        *choosing_replacements(),
    ]
