"""Upstream's V1 manager and loop over our block manager (`kvfix.manager: native`), in real memory."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.loading import EXECUTOR
from integration.upstream.native_engine import MemoryEngine
from integration.upstream.native_pins import Pinner
from integration.upstream.scheduling import Scheduler
from integration.upstream.server import Outcome, Server
from trtllm_kvfix.managers.capacity import scheduler_for
from trtllm_kvfix.managers.constructors import objection
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import on_stream

VSWA_RULE = "uses_vswa_kv_cache_layout"


class FittingScheduler(Scheduler):
    """Follows a capacity scheduler, as upstream's does: that one decides who may run, this one how much of it."""

    def __init__(self, shape: Any, states: Any, capacity: Any) -> None:
        super().__init__(shape, states)
        self.capacity = capacity

    def schedule_request(self, active: list[Any], inflight: Any) -> Any:
        fitting, _, paused = self.capacity(active)
        output = super().schedule_request(fitting, inflight)
        return output._replace(paused_requests=[*output.paused_requests, *paused])


class FittingServer(Server):
    """Upstream's own manager, with the capacity scheduler that the bound classes bring."""

    at_end: Callable[[], None] = staticmethod(lambda: None)

    def _look(self, outcome: Outcome) -> None:
        self.at_end()
        super()._look(outcome)

    def _scheduler(self, states: Any) -> Any:
        algorithms = import_module("tensorrt_llm.bindings.internal.algorithms")
        policy = getattr(self.batch_manager.CapacitySchedulerPolicy, self.shape.policy)
        bound = algorithms.CapacityScheduler(
            max_num_requests=self.shape.max_batch_size,
            capacity_scheduler_policy=policy,
            has_kv_cache_manager=True,
            two_step_lookahead=False,
            no_schedule_until_state=states.CONTEXT_INIT,
            no_schedule_after_state=states.GENERATION_COMPLETE,
        )
        return FittingScheduler(self.shape, states, lambda active: bound(active, self.manager.impl, None))


class Windows:
    """D's constructor calls this, and no excerpt holds it."""

    def _resolve_max_attention_window_vec(self, *, max_seq_len: int, **given: Any) -> list[int]:
        windows = given["kv_cache_config"].max_attention_window or [max_seq_len]
        return [min(max_seq_len, window) for window in windows]

    def get_max_atten_window_upper_bound(self, *, blocks_in_primary_pool: int, tokens_per_block: int, **_: Any) -> int:
        return blocks_in_primary_pool * tokens_per_block


class NativeServer(Server):
    engine_class = MemoryEngine
    engine: MemoryEngine
    at_end: Callable[[], None] = staticmethod(lambda: None)
    retention_of: Callable[[Arrival], Any] = staticmethod(lambda _: None)

    def keywords_of(self, arrival: Arrival) -> dict[str, Any]:
        config = self.retention_of(arrival)
        return {} if config is None else {"kv_cache_retention_config": config}

    def _manager(self) -> Any:
        self._give_back_constructor()
        return super()._manager()

    def _give_back_constructor(self) -> None:
        """Upstream's. The rig's stands there because the bound class does not take what is passed; ours does."""
        kind, own = self.resources.KVCacheManager, self.tree.constructors.get("KVCacheManager")
        if own is not None and kind.__init__ is not own:
            kind.__init__ = own
            lacking = [name for name in vars(Windows) if name[:2] != "__" and name not in vars(kind)]
            for name in lacking:
                setattr(kind, name, vars(Windows)[name])
            if hasattr(self.resources, VSWA_RULE):
                setattr(self.resources, VSWA_RULE, lambda vector: len(set(vector)) > 1)  # of a module without excerpt
                lacking.append(VSWA_RULE)
            given = [name for name in self.tree.lacking["KVCacheManager"] if name != "__init__"]
            self.tree.lacking["KVCacheManager"] = given + lacking

    def _executor(self) -> Any:
        executor = super()._executor()
        # Where upstream's constructor has run, the executor is what a start would look at.
        refusal = objection(Settings(manager="native"), executor) if "__init__" not in self._ours_of_executor() else ""
        if refusal:
            raise RuntimeError(refusal)
        return executor

    def _ours_of_executor(self) -> list[str]:
        return self.tree.lacking["PyExecutor"]

    def _scheduler(self, states: Any) -> Any:
        capacity = scheduler_for(self.shape.max_batch_size, self.manager.impl, None, self.shape.policy)
        assert capacity is not None
        return FittingScheduler(self.shape, states, capacity.schedule_request)

    def serve(self, arrivals: list[Arrival], cancels: dict[int, list[int]] | None = None) -> Outcome:
        self.pinner = Pinner(self.engine, [each.prompt for each in arrivals])
        self.pinner.watch(self.manager.impl)
        return super().serve(arrivals, cancels)

    def _look(self, outcome: Outcome) -> None:
        try:
            self.at_end()
        except AssertionError as error:
            outcome.remarks.append(str(error))
        impl: NativeKvCache = self.manager.impl
        outcome.corrupt, outcome.batches = self.engine.contents.corrupt, self.engine.findings.batches
        outcome.computed = sum(end - begin for batch in outcome.batches for _, begin, end in batch["contexts"])
        outcome.settled = list(self.device.settled)
        if not self.engine.values_read:
            outcome.remarks.append("no value was read back, so this shows nothing")
        if self.shape.reuse and not self.pinner.blocks_read:
            outcome.remarks.append("no block was found and pinned, so this shows less than it should")
        impl.core.check_invariants()
        total = impl.core.get_kv_cache_stats().total
        outcome.moves = total.blocks_copied + total.blocks_offloaded + total.blocks_onboarded
        free = impl.get_kv_cache_stats().num_free_blocks_per_window_size
        outcome.released = all(count == self.shape.blocks_of(window) for window, count in free.items())


def make_server(tree: Any, device: Any, shape: Any, connector: Any) -> Server:
    """The arm without the overlay is upstream's own manager."""
    resources = import_module(f"{EXECUTOR}.resource_manager")
    is_ours = type(resources.KVCacheManagerCpp).__name__ == "Substitute"
    with on_stream(device.device, device.new_stream()):
        return (NativeServer if is_ours else FittingServer)(tree, device, shape, connector)
