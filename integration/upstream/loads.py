"""Connectors that load: prompts that lie outside of the KV cache, written into its slots when the load says so.

A synchronous load is written on the stream, before the batch that reads it. An asynchronous one is written when its
worker reports it as finished: as late as it may be, into the slots that it was given when it began.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from integration.upstream.connectors import Calls, connector_module, recording
from integration.upstream.finder import Tree


class Offer(NamedTuple):
    """An offer lies outside of a request's prompt: so many tokens, and how long they take."""

    tokens: int
    polls: int = 0  # of the worker, until an asynchronous load is over; 0: it is synchronous


@dataclass
class Load:
    key: int  # a request, or a reservation
    tokens: list[int]
    begin: int
    end: int
    polls: int
    slots: dict[int, list[int]] = field(default_factory=dict)  # by window


class Loads:
    """The scheduler's side has promised these loads, and the worker's side has still to write them."""

    def __init__(self, offers: dict[int, Offer]) -> None:
        self.offers = offers
        self.server: Any = None
        self.promised: dict[int, Load] = {}
        self.begun: list[Load] = []
        self.running: list[Load] = []
        self.finished: list[int] = []

    def offer(self, request: Any, computed: int, key: int) -> tuple[int, bool]:
        given = self.offers.get(request.request_id, Offer(0))
        end = min(given.tokens, request.prompt_len - 1)
        if end <= computed:
            return 0, False
        tokens = list(request.get_tokens(0))[:end]
        self.promised[key] = Load(key, tokens, computed, end, given.polls)
        return end - computed, given.polls > 0

    def placed(self, request: Any) -> None:
        """Its slots are known: the worker may write."""
        load = self.promised.pop(request.request_id, None)
        if load is not None:
            manager = self.server.manager
            for window in sorted(set(manager.max_attention_window_vec)):
                load.slots[window] = self.server.engine.slots_of(request.request_id, window)
            self.begun.append(load)

    def start(self) -> None:
        for load in self.begun:
            if load.polls:
                self.running.append(load)
            else:
                self.server.engine.arriving.append(lambda load=load: self.write(load))
                self.finished.append(load.key)
        self.begun = []

    def poll(self) -> list[int]:
        for load in self.running:
            load.polls -= 1
        over = [load for load in self.running if not load.polls]
        self.running = [load for load in self.running if load.polls]
        for load in over:
            self.write(load)
        return [load.key for load in over]

    def write(self, load: Load) -> None:
        for window, slots in load.slots.items():
            self.server.engine.fill(window, slots, load.tokens, load.begin, load.end)


def loading(tree: Tree, calls: Calls, offers: dict[int, Offer]) -> Any:
    """Upstream's connector manager over a connector that has something, and answers a query."""
    manager = recording(tree, calls)
    recorded: Any = type(manager.scheduler)
    loads = Loads(offers)

    class Scheduler(recorded):  # type: ignore[misc]
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            super().get_num_new_matched_tokens(request, num_computed_tokens)
            return loads.offer(request, num_computed_tokens, request.request_id)

        def update_state_after_alloc(self, request: Any, block_ids: Any) -> None:
            super().update_state_after_alloc(request, block_ids)
            loads.placed(request)

        def update_state_after_alloc_by_layer_group(self, request: Any, block_ids_by_layer_group: Any) -> None:
            super().update_state_after_alloc_by_layer_group(request, block_ids_by_layer_group)
            loads.placed(request)

    return type(manager)(_worker_class(type(manager.worker), loads)(), Scheduler())


def reserving(tree: Tree, calls: Calls, offers: dict[int, Offer]) -> Any:
    """Upstream's newest connector manager over a connector that reserves what it has while upstream schedules."""
    manager = recording(tree, calls)
    recorded: Any = type(manager.scheduler)
    loads = Loads(offers)

    class Scheduler(recorded):  # type: ignore[misc]
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            raise AssertionError(f"request {request.request_id} is asked for at {num_computed_tokens}")

        def reserve_prefix(self, request: Any, num_computed_tokens: int, reservation_id: int) -> tuple[int, bool]:
            calls.note("reserve_prefix", request, num_computed_tokens, reservation_id)
            return loads.offer(request, num_computed_tokens, reservation_id)

        def release_prefix_reservation(self, request: Any, reservation_id: int, start: int, end: int) -> None:
            calls.note("release_prefix_reservation", request, reservation_id, start, end)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            """A load begins when it is accepted; what was reserved and not accepted never does."""
            super().build_connector_meta(scheduler_output)
            return [_accepted(loads, load) for load in scheduler_output.prefix_loads]

        def request_reset(self, request: Any) -> None:
            calls.note("request_reset", request)

    recorded_worker: Any = type(manager.worker)

    class Worker(_worker_class(recorded_worker, loads)):  # type: ignore[misc]
        def bind_connector_meta(self, metadata: Any) -> None:
            super().bind_connector_meta(metadata)
            loads.begun = list(metadata or ())

        def get_finished(self, *ids: Any) -> tuple[list[int], list[int]]:
            found: tuple[list[int], list[int]] = recorded_worker.get_finished(self, *ids)
            return found

        def get_finished_prefix_loads(self) -> list[int]:
            over, loads.finished = loads.finished, []
            return over + loads.poll()

    return connector_module(tree).KvCacheConnectorManager(Worker(), Scheduler())


def _accepted(loads: Loads, accepted: Any) -> Load:
    """The pages of the load that upstream has accepted."""
    promised = loads.promised[accepted.reservation_id]
    pools = loads.server.manager.impl.pools
    by_group = zip(pools, accepted.block_ids_by_layer_group, strict=True)
    slots = {pool.window: list(pages) for pool, pages in by_group}
    return Load(promised.key, promised.tokens, accepted.start, accepted.end, promised.polls, slots)


def _worker_class(recorded: Any, loads: Loads) -> Any:
    class Worker(recorded):  # type: ignore[misc]
        def attach(self, server: Any) -> None:
            loads.server = server

        def start_load_kv(self, stream: Any) -> None:
            super().start_load_kv(stream)
            loads.start()

        def get_finished(self, finished_gen_req_ids: Any, started_loading_req_ids: Any) -> tuple[list[int], list[int]]:
            super().get_finished(finished_gen_req_ids, started_loading_req_ids)
            return [], loads.poll()

    return Worker
