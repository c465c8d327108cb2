"""Connectors over the native manager: their loads lie in the memory where the model reads them, and so do ours.

In D a connector also gets the hashes of a request's blocks, and how long they are to be kept.
"""

from dataclasses import replace
from typing import Any

from integration.upstream import late
from integration.upstream.arrivals import Arrival
from integration.upstream.contents import prefix_names
from integration.upstream.load_scenarios import loading
from integration.upstream.native_crowded import crowded
from integration.upstream.native_crowds import ERAS, WIDE
from integration.upstream.native_held import FIRST_HALF, KEPT, failing_offloads, is_ours, kept_stem
from integration.upstream.scenarios import ALL, Scenario
from trtllm_kvfix import native
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.staging import current_place


def connected() -> list[Scenario]:
    eras: dict[str, Any] = {"eras": ERAS, "kind": "native", "calls_differ": True}
    v1 = [each for each in loading() if each.kind == "serve" and each.fix == ALL]
    one_pool = replace(WIDE, blocks=18, heads=(1,), layers=2)
    hosted = replace(one_pool, host_blocks=24)
    ours: dict[str, Any] = {"connector": "ours", "calls_differ": True}
    told = crowded("native-told", replace(one_pool, blocks=44), 15, prepare=named, connector="recorder", eras=("D",))
    return [
        *(replace(each, name=f"native-{each.name}", **eras) for each in v1),
        crowded("native-ours", one_pool, 14, prepare=with_our_connector, **ours),
        crowded("native-ours-plain-loop", replace(one_pool, overlap=False), 14, prepare=with_our_connector, **ours),
        crowded("native-ours-load-fails", one_pool, 14, prepare=failing_loads, recomputed_min=1, **ours),
        crowded("native-ours-fail-offloads", hosted, 16, prepare=failing_copies, **ours),
        replace(told, arrivals=(Arrival(100, [*KEPT, 7], 9), *told.arrivals), calls_differ=True),
    ]


def with_our_connector(server: Any) -> None:
    """While all requests wait for a load, the loop does not wait for the device, which continues by itself.

    Without the overlay the engine reads no bytes, so it cannot know what was loaded: there each load fails.
    """
    if not is_ours(server):
        failing_loads(server)
        return
    _go_round(server)

    def at_end() -> None:
        assert counters.offload_loaded_blocks.value, "our connector loaded nothing"

    server.at_end = at_end


def _go_round(server: Any) -> None:
    server.iterations_max = 100_000
    scheduler, schedule = server.executor.scheduler, server.executor.scheduler.schedule_request

    def schedule_request(active: list[Any], inflight: Any) -> Any:
        found = schedule(active, inflight)
        if not found.num_fitting_requests:
            server.device.settle()
        return found

    scheduler.schedule_request = schedule_request


# ---- copies that fail ----


def failing_loads(server: Any) -> None:
    """The blocks that our connector promised do not come: the requests compute them."""
    _go_round(server)
    transfers = server.connector.worker.side._transfers
    enqueue, take_ended = transfers._enqueue, transfers.take_ended
    refused: list[Any] = []

    def enqueue_stores(job: Any, direction: str, lane: Any, mark: Any) -> None:
        if direction == "store":
            enqueue(job, direction, lane, mark)
        else:
            refused.append(job)

    def refuse_loads() -> Any:
        transfers.refuse(refused[:], "planted")
        refused.clear()
        return take_ended()

    transfers._enqueue, transfers.take_ended = enqueue_stores, refuse_loads


def failing_copies(server: Any) -> None:
    """The manager's own offloads fail, while a connector saves the same blocks and brings them back."""
    failing_offloads(server)
    has_failed = server.at_end
    with_our_connector(server)
    has_loaded = server.at_end

    def at_end() -> None:
        has_failed()
        has_loaded()

    server.at_end = at_end


# ---- what a connector is told ----


def named(server: Any) -> None:
    if is_ours(server):
        kept_stem(server)
        Told(server)


class Told:
    """Trusts a connector's reports: a hash names the tokens up to its block, and computed blocks are there."""

    def __init__(self, server: Any) -> None:
        self._server, self._manager = server, server.manager
        self._core: native.BlockManager = server.manager.impl.core
        self._tokens: dict[int, list[int]] = {}
        self._slots: dict[int, list[int]] = {}
        self._read: set[tuple[int, int]] = set()
        self._priorities: set[int] = set()
        self._wrong: list[str] = []
        self._keep_stem = server.at_end
        scheduler, build = server.connector.scheduler, server.connector.scheduler.build_connector_meta
        make = server.request

        def build_connector_meta(output: Any) -> Any:
            for each in (*output.new_requests, *output.cached_requests):
                self._look(each)
            return build(output)

        def request(arrival: Arrival) -> Any:
            made = make(arrival)
            made.kv_cache_retention_config = server.retention_of(arrival)
            return made

        scheduler.build_connector_meta, server.request, server.at_end = build_connector_meta, request, self._end

    def _look(self, data: Any) -> None:
        tokens = self._tokens.setdefault(data.request_id, [])
        slots = self._slots.setdefault(data.request_id, [])
        tokens += data.new_tokens
        slots += data.new_block_ids
        prompt = native.SequenceRequest(data.request_id, tokens)
        wanted = [each & FIRST_HALF for each in native.block_hashes(prompt, self._core.config)]
        if data.block_hashes != wanted:
            self._wrong.append(f"request {data.request_id}: its hashes are not those of its tokens")
        for number in range(data.computed_position // self._manager.tokens_per_block):
            if (data.request_id, number) not in self._read:
                self._read.add((data.request_id, number))
                self._read_in_order(prefix_names(tokens), number, slots[number])
        if data.priorities is not None:
            assert len(data.priorities) == len(data.new_block_ids)
            self._priorities |= set(data.priorities)

    def _read_in_order(self, names: list[int], number: int, slot: int) -> None:
        """Reads after the steps that were enqueued before, and ahead of the next one, as a connector saves."""
        read = self._server.engine.read_block
        late.late().run(current_place().stream, lambda: read(names, number, slot, "primary"))

    def _end(self) -> None:
        self._keep_stem()
        assert not self._wrong, self._wrong[0]
        assert any(len(self._tokens[each]) > len(KEPT) + 4 for each, _ in self._read), "no block of an answer was read"
        assert self._priorities == {100}, f"the priorities that were told: {self._priorities}"
