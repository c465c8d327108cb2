"""Others use the native manager beside its loop: readers of events, threads that hold pinned blocks, failing copies.

Each is put on a server before it serves, and says at its end what was wrong, by AssertionError.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from integration.upstream import provided
from integration.upstream.arrivals import Arrival
from integration.upstream.contents import prefix_names
from integration.upstream.promises import whole_blocks
from trtllm_kvfix import native

HELD_MAX = 2  # requests whose blocks a reader holds at once
KEPT = list(range(90_000, 90_016))  # whole blocks, that nobody else begins with
# Request, prompt and slots to read from now on; a request alone, to drop; nothing, to look again.
Order = tuple[int | None, list[int] | None, list[int] | None]
FIRST_HALF = 2**64 - 1


def is_ours(server: Any) -> bool:
    return hasattr(server.manager.impl, "core")


def around(impl: Any, name: str, *, before: Callable[..., Any] | None = None, after: Any = None) -> None:
    method = getattr(impl, name)

    def call(*args: Any) -> Any:
        if before is not None:
            before(*args)
        found = method(*args)
        if after is not None:
            after()
        return found

    setattr(impl, name, call)


# ---- events ----


class Router:
    """Follows what upstream's executor hands out. What can be found must be what the events have reported."""

    def __init__(self, server: Any) -> None:
        self._executor = server.executor
        self._core: native.BlockManager = server.manager.impl.core
        self._level_of: dict[int, int] = {}
        self._next_id = 0
        self._seen: Counter[str] = Counter()
        self._prompts: dict[tuple[int, ...], list[int]] = {}  # whole blocks, and their hashes
        around(server.manager.impl, "add_sequence", before=lambda _, __, ___, request: self._note(request))
        around(server.manager.impl, "sync_transfer_manager_with_buffer_manager", after=self._compare)
        server.at_end = self._end

    def _note(self, request: Any) -> None:
        if not request.is_dummy_request:
            tokens = request.get_tokens(0)
            hashes = native.block_hashes(native.SequenceRequest(0, tokens), self._core.config)
            self._prompts[tuple(tokens[: len(hashes) * self._core.config.tokens_per_block])] = hashes

    def _compare(self) -> None:
        self._executor._add_kv_cache_events()
        self._follow()
        for tokens, hashes in self._prompts.items():
            found = whole_blocks(self._core, tokens)
            levels = Counter(self._level_of.get(each & FIRST_HALF) for each in hashes)
            if found != (levels[0], levels[1]):
                raise AssertionError(f"{found} blocks of a prompt, and the events say {levels}")

    def _follow(self) -> None:
        for event in self._executor.get_latest_kv_cache_events():
            assert (event.event_id, event.attention_dp_rank) == (self._next_id, None)
            self._next_id += 1
            kind = type(event.data).__name__
            self._seen[kind] += 1
            match kind:
                case "KVCacheStoredData":
                    assert event.data.parent_hash is None or event.data.parent_hash in self._level_of
                    self._level_of |= {each.block_hash: each.cache_level for each in event.data.blocks}
                case "KVCacheRemovedData":
                    for each in event.data.block_hashes:
                        del self._level_of[each]
                case "KVCacheUpdatedData":
                    diff = event.data.cache_level
                    assert diff is None or self._level_of[event.data.block_hash] == diff.old_value
                    if diff is not None:
                        self._level_of[event.data.block_hash] = diff.new_value

    def _end(self) -> None:
        wanted = {f"KVCache{kind}Data" for kind in ("Created", "Stored", "Removed", "Updated")}
        assert set(self._seen) == wanted, f"events of these kinds came: {dict(self._seen)}"


def routed(server: Any) -> None:
    if is_ours(server):
        Router(server)


# ---- pins ----


class Holder:
    """Has the blocks of ended requests pinned by upstream's names, and a thread reads them until they are let go."""

    def __init__(self, server: Any) -> None:
        self._server, self._manager = server, server.manager
        self._held: list[tuple[int, Any]] = []  # what `store_blocks_for_reuse` answered, by request
        self._ended = 0
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._dropped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="reader of pinned blocks")
        self._thread.start()
        around(self._manager.impl, "remove_sequence", before=self._hold)
        look_again = (None, None, None)
        around(
            self._manager.impl,
            "sync_transfer_manager_with_buffer_manager",
            after=lambda: self._orders.put(look_again),
        )
        server.at_end = self._end

    def _hold(self, request_id: int, request: Any, _: bool) -> None:
        computed = request is not None and request.get_num_tokens(0) > request.prompt_len
        if request is None or request.is_dummy_request or not computed:
            return
        if len(self._held) == HELD_MAX:
            self._let_go()
        self._held.append((request_id, self._manager.store_blocks_for_reuse(request, True)))
        (slots,) = self._manager.impl.get_cache_block_ids(request_id, self._manager.impl.layout.windows[0].size)
        self._orders.put((request_id, request.get_tokens(0)[: request.prompt_len], list(slots)))

    def _let_go(self) -> None:
        """Lets go of the oldest, once it has been read again."""
        request_id, pinned = self._held.pop(0)
        self._orders.put((request_id, None, None))
        assert self._dropped.get(timeout=30) == request_id
        self._manager.impl.unpin_blocks_by_id(pinned)
        self._ended += 1

    def _read(self) -> None:
        """The thread reads once for each iteration of the loop, beside it."""
        reading: dict[int | None, tuple[list[int], list[int]]] = {}
        for request_id, prompt, slots in iter(self._orders.get, None):
            if prompt is not None and slots is not None:
                reading[request_id] = prompt, slots
            elif request_id is not None:
                self._read_blocks(*reading.pop(request_id))
                self._dropped.put(request_id)
            for each in reading.values():
                self._read_blocks(*each)

    def _read_blocks(self, prompt: list[int], slots: list[int]) -> None:
        names = prefix_names(prompt)
        for number in range(len(prompt) // self._manager.tokens_per_block):
            self._server.engine.read_block(names, number, slots[number], "primary")

    def _end(self) -> None:
        while self._held:
            self._let_go()
        self._orders.put(None)
        self._thread.join()
        assert self._ended, "no request left a block to be held"


def held(server: Any) -> None:
    if is_ours(server):
        Holder(server)


# ---- retention ----


def kept_stem(server: Any) -> None:
    """One prompt wants to be kept, through a crowd that would evict it."""
    if not is_ours(server):
        return
    bound = provided.bound_module()

    def retention_of(arrival: Arrival) -> Any:
        if arrival.prompt[:4] != KEPT[:4]:
            return None
        return bound.KvCacheRetentionConfig([bound.TokenRangeRetentionConfig(0, None, 100)], 100)

    def at_end() -> None:
        found = server.manager.impl.core.analyze_prefix_reuse(native.SequenceRequest(0, [*KEPT, 1])).tokens
        assert found >= len(KEPT), f"{found} of the {len(KEPT)} tokens that were to be kept are cached"

    server.retention_of = retention_of
    server.at_end = at_end


# ---- pauses ----


def pausing(server: Any) -> None:
    """More run than fit: some must be paused, and come again."""
    if not is_ours(server):
        return
    paused: list[int] = []
    scheduler, capacity = server.executor.scheduler, server.executor.scheduler.capacity

    def counting(active: list[Any]) -> Any:
        found = capacity(active)
        paused.extend(each.request_id for each in found[2])
        return found

    def at_end() -> None:
        assert paused, "nobody was paused"

    scheduler.capacity = counting
    server.at_end = at_end


# ---- copies that fail ----


def failing_offloads(server: Any) -> None:
    """Every third batch of copies that only brings blocks to the host tier does not arrive."""
    if not is_ours(server):
        return
    copies = server.manager.impl._copies
    waves, submit = copies._memory.waves, copies._engine.submit
    sent: list[bool] = []
    failed: list[int] = []

    def seen(items: Any) -> Any:
        sent.append(all(each.kind == "offload" for each in items))
        return waves(items)

    class Engine:
        def __getattr__(self, name: str) -> Any:
            return getattr(copies_engine, name)

        def submit(self, *args: Any, **kwargs: Any) -> Any:
            if sent[-1] and len(sent) % 3 == 0:
                failed.append(len(sent))
                raise native.DeviceError("cuMemcpyBatchAsync: planned")
            return submit(*args, **kwargs)

    copies_engine = copies._engine
    copies._memory.waves, copies._engine = seen, Engine()

    def at_end() -> None:
        assert failed, "no copy failed"

    server.at_end = at_end
