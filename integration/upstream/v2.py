"""One step of the newest V2 manager with a connector: schedule, prepare, report. Upstream's own methods throughout.

Behind the manager is the V2 runtime. No loop runs and nothing is computed; the scenario looks at the reports that the
connector gets.
"""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.loading import EXECUTOR
from integration.upstream.scheduling import Scheduler
from integration.upstream.server import Outcome, Server
from integration.upstream.v2_theirs import runtime_for


class StepServer(Server):
    """A server without a loop: `serve` takes each request through its first step."""

    def _manager(self) -> Any:
        module = import_module(f"{EXECUTOR}.kv_cache.kv_cache_manager_v2")
        manager = object.__new__(module.KVCacheManagerV2)
        longest = self.shape.max_seq_len
        groups = replace(self.shape, windows=(longest, longest // 2))  # no prompt is as long as either
        runtime = runtime_for(self.tree, groups, self.stream.cuda_stream)
        # It has fewer pages in the group that slides, so what follows has other pages in each.
        self._first = self._cache(runtime)
        assert self._first.resize(longest, longest)
        whole = SimpleNamespace(get_stale_range=lambda _history, _tokens: SimpleNamespace(beg=0, end=0))
        vars(manager).update(
            is_draft=False,
            kv_connector_manager=self.connector,
            tokens_per_block=self.shape.tokens_per_block,
            kv_cache_map=runtime.caches,
            impl=runtime,
            _disagg_receive_ready={},
            max_batch_size=self.shape.max_batch_size,
        )
        type(manager)._life_cycle_by_layer_group = lambda _: [whole] * len(groups.windows)
        return manager

    def _cache(self, runtime: Any) -> Any:
        cache = runtime.create_kv_cache((None, None), [])
        assert cache.resume(self.stream.cuda_stream)
        return cache

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
        cache = self._cache(self.manager.impl)
        assert cache.resize(len(arrival.prompt))
        self.manager.kv_cache_map[arrival.id] = cache
        self.executor.active_requests = [request]
        batch, _, _ = self.executor._schedule()
        self.executor.resource_manager.prepare_resources(batch)
        self.connector.handle_metadata()
