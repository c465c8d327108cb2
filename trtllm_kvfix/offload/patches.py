"""What we change in upstream, because it has no callback there, and what this release of it has.

Before a batch runs: the connector gets each request as a whole (`WholeRequests`), and the cache manager, whose copies
into blocks loads must follow. In a full pool, requests that load find room (`Room`). Whoever else has a say in which
requests are scheduled (`Chooser`) is asked there, too.

When requests end and loads fail: a request that has ended keeps its blocks until no transfer uses them (`KeptBlocks`).
A request whose load failed computes those tokens instead.

When weights change: what was computed with the old ones is no prefix of anything any more (`noting`).
"""

import inspect
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Weights, links
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.seam import SeamError, is_marked
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import CONNECTOR_PLACES, PY_EXECUTOR, RESOURCE_MANAGER, SCHEDULER, Upstream
from trtllm_kvfix.overlay.vote import Voting, mapping_of
from trtllm_kvfix.ranks import Tag


@dataclass
class Tried:
    failed: bool = False


@contextmanager
def guarded(fuse_name: str) -> Iterator[Tried]:
    """Faults in the connector's own code inside upstream's loop: counted, logged once, and never passed on to upstream.

        with guarded("offload-kept-blocks") as tried:
            ...  # ours alone; what upstream raises must pass, so its calls lie outside
        if tried.failed:
            ...  # what is safe: keep, wait, or compute

    A `KvfixError` is no fault. It stops all ranks on purpose, and says why.
    """
    tried, ours = Tried(), fuse.of(fuse_name)
    try:
        yield tried
    except KvfixError:
        raise
    except Exception as error:
        tried.failed = True
        ours.fault(error)
    else:
        ours.in_a_row = 0


# TensorRT-LLM's connector classes, wherever this version keeps them. Without TensorRT-LLM, plain objects stand in.


class PlainScheduler:
    """The part of upstream's scheduler base that the connector uses."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args


class PlainWorker:
    """The part of upstream's worker base that the connector uses."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: Any = None

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def register_forward_pass_callable(self) -> None:
        """Nothing needs to be called behind a step."""


def connector_module() -> ModuleType | None:
    """Upstream's module, if TensorRT-LLM has been imported already: upstream is what loads connectors."""
    if "tensorrt_llm" not in sys.modules:
        return None
    for place in CONNECTOR_PLACES:
        try:
            return import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
    return None


def bases() -> tuple[type[Any], type[Any]]:
    """The base classes of the scheduler side and of the worker side."""
    module = connector_module()
    if module is None:
        return PlainScheduler, PlainWorker
    return module.KvCacheConnectorScheduler, module.KvCacheConnectorWorker


def is_v2(kv_cache_manager: Any) -> bool:
    """Whether the manager is a KVCacheManagerV2, which has its sequences in Python."""
    return isinstance(getattr(kv_cache_manager, "kv_cache_map", None), dict)


def slots_now(room: "Room", request_id: int, first: int, end: int) -> list[list[int]] | None:
    """Where V2 has these blocks of a request, by layer group. Nothing if it has no pages on the device now. On V1 a
    block stays in its slot: None."""
    manager = room.manager
    if not is_v2(manager):
        return None
    cache = manager.kv_cache_map.get(request_id)
    if cache is None or not cache.is_active:
        return []
    groups = range(len(manager.impl.layer_grouping))
    return [[int(slot) for slot in cache.get_base_page_indices(group)[first:end]] for group in groups]


def gives_each_rank_a_scheduler() -> bool:
    """Whether attention data parallelism has one scheduler per rank. Late managers ask connectors for support."""
    return hasattr(getattr(connector_module(), "KvCacheConnectorManager", None), "validate_attention_dp")


def warn_where_nothing_orders_copies(kv_cache_config: Any) -> None:
    """Only 1.1 copies the beginnings of blocks on a stream that no other waits for, not even the forward's. The fix
    `partial-copies` makes managers that copy none."""
    upstream = Upstream()
    if "tensorrt_llm" not in sys.modules or upstream.variant() != "A":
        return
    if is_marked(upstream.attribute(RESOURCE_MANAGER, "KVCacheManager.__init__"), "partial-copies"):
        return
    partial = getattr(kv_cache_config, "enable_partial_reuse", True)
    if partial and getattr(kv_cache_config, "copy_on_partial_reuse", True):
        log.warning(
            "this TensorRT-LLM copies blocks that are reused in part while others read and load them: switch "
            "kvfix.fixes.partial-copies on, or set kv_cache_config.copy_on_partial_reuse to "
            "false (docs/offload.md, Limits)"
        )


def lets_go_of_all() -> bool:
    """Whether the executor unpins every request that `get_finished` returns.

    The executor of variant A stops after the first, and the blocks of the others stay pinned until the server ends.
    """
    if "tensorrt_llm" not in sys.modules:
        return True
    executor = getattr(sys.modules.get(PY_EXECUTOR), "PyExecutor", None)
    return hasattr(executor, "_end_transfer_and_maybe_terminate")


KEPT_BLOCKS = "offload-kept-blocks"
FREE_RESOURCES = Seam(RESOURCE_MANAGER, "ResourceManager.free_resources")


@dataclass(frozen=True, eq=False)
class Kept:
    request: Any
    state: Any  # upstream treats a request whose load is over as one that waits, even if it has been cancelled
    was_loading: bool
    manager: Callable[[], Any]  # None where the server is over, and its blocks with it


def weakly(thing: Any) -> Callable[[], Any]:
    """Returns what gives the thing, or None if nobody keeps it. A thing that takes no weak references is kept."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


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
        self._kept[request_id] = Kept(request, request.state, loads, weakly(manager))
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
            manager = kept.manager()
            if manager is not None:
                with nothing_stored(kept):
                    manager.free_resources(kept.request)

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


def keeping_blocks(original: Callable[..., Any]) -> Callable[..., Any]:
    def free_resources(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        answer = Freeing(stays=False)
        tried = Tried(failed=fuse.of(KEPT_BLOCKS).blown)
        if not tried.failed:
            with guarded(KEPT_BLOCKS) as tried:
                answer = ask(self, request)
        if tried.failed and not all(each.waits_instead(request) for each in keepers_of(self)):
            return None
        if not answer.stays:
            return original(self, request, *args, **kwargs)
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
    return [link.kept for link in links() if link.kept is not None] if found is None else [found]


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


def computing_failed_loads(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_finished(self: Any, *args: Any, **kwargs: Any) -> Any:
        recompute: dict[int, int] | None = getattr(getattr(self, "worker", None), "requests_to_recompute", None)
        if recompute is None:
            return original(self, *args, **kwargs)
        loading = {request_id: one for place in PLACES for request_id, one in loading_in(self, place)}
        finished = original(self, *args, **kwargs)
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


def computing_what_did_not_come(original: Callable[..., Any]) -> Callable[..., Any]:
    def finish_prefix_loads(self: Any, reservation_ids: list[int], *args: Any, **kwargs: Any) -> Any:
        failed: dict[int, int] = getattr(getattr(self, "worker", None), "reservations_to_recompute", {})
        requests = [self._prefix_load_requests.get(failed.pop(each)) for each in reservation_ids if each in failed]
        finished = original(self, reservation_ids, *args, **kwargs)
        for request in requests:
            if request is not None and request not in self._finished_load_terminations:
                begin_again(self.worker.cache_manager, request)
                counters.offload_recomputed_requests.add()
        return finished

    return finish_prefix_loads


def ending_replacements(connector_module: str) -> list[Replacement]:
    """Have upstream ask whether blocks may go, and its connector manager whether loads have come."""
    found = [
        taking(FREE_RESOURCES, keeping_blocks, "request"),
        taking(Seam(connector_module, GET_FINISHED), computing_failed_loads),
    ]
    if Upstream().has(connector_module, FINISH_PREFIX_LOADS):
        seam = Seam(connector_module, FINISH_PREFIX_LOADS)
        found.append(taking(seam, computing_what_did_not_come, "reservation_ids"))
    return found


def taking(seam: Seam, make: Callable[[Any], Any], *arguments: str) -> Replacement:
    """Replace a method that takes these arguments, and may take more. Raises SeamError where it needs others: upstream
    would call ours in another way than it is written for, in the executor's loop."""

    def checked(original: Any) -> Any:
        if not takes(Upstream(), original, SELF, *arguments):
            found = "is absent" if original is None else f"takes ({', '.join(Upstream().parameters(original))})"
            raise SeamError(
                f"{seam} {found}, and the offload connector knows it with ({', '.join(('self', *arguments))}): this "
                "TensorRT-LLM is probably later than those that it serves (docs/support.md)"
            )
        return make(original)

    return Replacement(seam, checked)


ROOM_FOR_LOADS = "offload-room"
SCHEDULER_PLACES = (SCHEDULER, f"{SCHEDULER}.scheduler", f"{SCHEDULER}.unified_scheduler")
POLICIES = ("BindCapacityScheduler", "PyCapacityScheduler")
V2_PLACE, V2_SCHEDULER, V2_COUNTING_SCHEDULER = (
    f"{SCHEDULER}.scheduler_v2", "KVCacheV2Scheduler", "KVCacheV2DummyScheduler",
)  # fmt: skip
GIVES_WAY = "enable_recompute_pause"
HAS_STARTED = f"{V2_SCHEDULER}._is_started_request"


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
    nothing to keep; a prompt that has loaded must count as one that has started (`counting_loads_as_a_start`).

    A `Room` is that of one cache manager, which upstream names later. The executor's thread alone uses it. It does not
    keep the manager: that keeps the connector, through C++, where no garbage collector sees the way back.
    """

    def __init__(self, fuse_of_room: Fuse, voting: Voting) -> None:
        self._manager: Callable[[], Any] | None = None
        self._fuse = fuse_of_room
        self._voting = voting
        self._held_back: set[int] = set()

    @property
    def manager(self) -> Any:
        return None if self._manager is None else self._manager()

    @manager.setter
    def manager(self, manager: Any) -> None:
        self._manager = weakly(manager)

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

    def shown(self, manager: Any, active: Sequence[Any]) -> Sequence[Any]:
        """`manager`: what the asking scheduler knows, which of a KVCacheManager is the bound half."""
        ours = self.room.manager
        is_bound = ours is not None and getattr(ours, "impl", None) is manager
        if is_bound or (ours is not None and ours is manager):
            for chooser in self._others:
                active = chooser.shown(active)
        return self.room.shown(active) if is_bound else active


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
    replacements = [
        Replacement(Seam(place, f"{name}.schedule_request"), choosing_from_shown) for name, place in found.items()
    ]
    if V2_SCHEDULER in found and Upstream().has(V2_PLACE, HAS_STARTED):
        replacements.append(Replacement(Seam(V2_PLACE, HAS_STARTED), counting_loads_as_a_start))
    return replacements


def is_python(place: str, name: str) -> bool:
    """Some builds compile their Python; a compiled class takes no replacement."""
    method = inspect.getattr_static(Upstream().attribute(place, name), "schedule_request", None)
    return isinstance(method, FunctionType)


def choosing_from_shown(original: Callable[..., Any]) -> Callable[..., Any]:
    def schedule_request(self: Any, active_requests: Any, *args: Any, **kwargs: Any) -> Any:
        for link in links():
            if link.choosers is not None:
                active_requests = link.choosers.shown(getattr(self, "kv_cache_manager", None), active_requests)
        return original(self, active_requests, *args, **kwargs)

    return schedule_request


def counting_loads_as_a_start(original: Callable[..., bool]) -> Callable[..., bool]:
    """V2's scheduler takes blocks from requests that have started, and a prompt has not before its first chunk. Once it
    has loaded it holds its blocks until then. In a full pool an older answer finds nobody who gives way, and the pass
    ends with it, before the prompts: all of them wait. Upstream ends the loop after 1,000 such passes, or never, if it
    takes the suspension of the answer for progress each time."""

    def _is_started_request(req: Any, *args: Any, **kwargs: Any) -> bool:
        has_loaded = req.is_context_init_state and getattr(req, "py_connector_served_position", 0) > 0
        return has_loaded or original(req, *args, **kwargs)

    return _is_started_request


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


def batch_replacements() -> list[Replacement]:
    """Have upstream pass whole requests and its cache manager to the connector, and schedule what has room."""
    return [
        Replacement(START_BATCH, telling_the_worker),
        Replacement(PREPARE_RESOURCES, noting_the_batch),
        *choosing_replacements(),
    ]


# Weights that change: what was computed with the old ones is no prefix of anything any more.
#
# Training with refit loads new weights into a running engine (`WorkerExtension.update_weights`), which ends with
# `reset_prefix_cache`; an extension of the user's own, or a server, may call the latter alone. Upstream then forgets
# what the device's cache holds. The host tier learns of it here, and every reset counts as a change: nothing else
# tells.
#
# These calls come from another thread, on every rank. Each only takes a note. The scheduler side applies it before it
# decides anything else, so all ranks follow one decision. While the call lasts, nothing is looked up and nothing
# stored.
WEIGHTS = "offload-weights"
RLHF = "tensorrt_llm.llmapi.rlhf_utils"  # imports Ray
OUTDATED = "the weights have changed since its blocks were stored"


class WorkerSide(Protocol):
    """The part of the worker side that this module uses."""

    @property
    def weights(self) -> Weights: ...
    def end_what_runs(self) -> None: ...


def noting_replacements() -> list[Replacement]:
    """Have upstream say when weights change. Nobody calls an extension that was imported after the engine was made."""
    up = Upstream()
    seams = [Seam(PY_EXECUTOR, "PyExecutor.reset_prefix_cache")]
    if RLHF in sys.modules:
        seams += [Seam(RLHF, f"WorkerExtension.{name}") for name in ("update_weights", "reset_prefix_cache")]
    missing = [seam for seam in seams if not up.has(seam.module, seam.path)]
    if missing:
        log.warning(
            "%s was not found: the host tier does not learn of weights that change in a running engine, and goes on to "
            "bring blocks that the old ones computed (docs/offload.md, When the weights change)",
            ", ".join(str(seam) for seam in missing),
        )
    return [Replacement(seam, noting) for seam in seams if seam not in missing]


def noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the executor, or of an extension of its worker, whose `engine` is the executor."""

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        sides = sides_of(self)
        with ExitStack() as stack:
            for side in sides:
                stack.enter_context(side.weights.changing())
            with guarded(WEIGHTS):
                for side in sides:
                    side.end_what_runs()
            return original(self, *args, **kwargs)

    return changed


def sides_of(caller: Any) -> list[WorkerSide]:
    """Return the side of the caller's engine, or all sides if it cannot be found: forgetting too much harms nobody."""
    sides = [link.side for link in links() if link.side is not None]
    try:
        connector = getattr(caller, "engine", caller).kv_connector_manager
        if connector is None:
            return []
        found = connector.worker.side
        return [side for side in sides if side is found]
    except Exception as error:
        fuse.of(WEIGHTS).fault(error)
        return sides
