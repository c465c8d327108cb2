"""One step of the newest V2 manager with a connector: schedule, prepare, report. Upstream's own methods throughout.

The V2 runtime is not here, so a cache of ours stands behind the manager: it only has pages. No loop runs and nothing is
computed; the scenario looks at the reports that the connector gets.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.loading import EXECUTOR
from integration.upstream.scheduling import Scheduler
from integration.upstream.server import Outcome, Server

LAYER_GROUPS = 2


class Cache:
    """The pages of one request in each layer group."""

    history_length = 0
    num_committed_tokens = 0

    def __init__(self, request_id: int, blocks: int) -> None:
        self._first = 100 * request_id
        self._blocks = blocks

    def get_aggregated_page_indices(self, layer_group: int, valid_only: bool) -> list[int]:
        del valid_only
        return [1000 * layer_group + self._first + ordinal for ordinal in range(self._blocks)]


class StepServer(Server):
    """A server without a loop: `serve` takes each request through its first step."""

    def _manager(self) -> Any:
        module = import_module(f"{EXECUTOR}.kv_cache.kv_cache_manager_v2")
        manager = object.__new__(module.KVCacheManagerV2)
        whole = SimpleNamespace(get_stale_range=lambda _history, _tokens: SimpleNamespace(beg=0, end=0))
        vars(manager).update(
            is_draft=False,
            kv_connector_manager=self.connector,
            tokens_per_block=self.shape.tokens_per_block,
            kv_cache_map={},
            impl=SimpleNamespace(layer_grouping=[[0], [1]][:LAYER_GROUPS]),
            _disagg_receive_ready={},
            max_batch_size=self.shape.max_batch_size,
        )
        type(manager)._life_cycle_by_layer_group = lambda _: [whole] * LAYER_GROUPS
        return manager

    def _metadata(self) -> Any:
        return None

    def _executor(self) -> Any:
        module = import_module(f"{EXECUTOR}.py_executor")
        types = self.resources.ResourceManagerType
        managers = self.resources.ResourceManager({types.KV_CACHE_MANAGER: self.manager})
        executor = object.__new__(module.PyExecutor)
        vars(executor).update(
            resource_manager=managers,
            scheduler=Scheduler(self.shape, self.batch_manager.LlmRequestState),
            model_engine=self.engine,
            active_requests=[],
            inflight_req_ids=set(),
            batch_class=module.ScheduledRequests,
            dist=SimpleNamespace(pp_size=1),
        )
        return executor

    def serve(self, arrivals: list[Arrival], cancels: dict[int, list[int]] | None = None) -> Outcome:
        del cancels
        outcome = Outcome()
        try:
            for arrival in arrivals:
                self._step(arrival)
                outcome.answered.append(arrival.id)
        except Exception as error:
            outcome.died = f"{type(error).__name__}: {error}"
        return outcome

    def _step(self, arrival: Arrival) -> None:
        request = self.request(arrival)
        request.py_connector_allocation_reported = False
        blocks = -(-len(arrival.prompt) // self.shape.tokens_per_block)
        self.manager.kv_cache_map[arrival.id] = Cache(arrival.id, blocks)
        self.executor.active_requests = [request]
        batch, _, _ = self.executor._schedule()
        self.executor.resource_manager.prepare_resources(batch)
        self.connector.handle_metadata()
