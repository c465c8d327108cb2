"""The scheduler chooses which requests run next: capacity first, then the token budget (surface 5)."""

from dataclasses import dataclass, field
from typing import Any

from ..._standin.batches import ChunkLists, PlainLists
from ..._standin.extension import bound
from ..._standin.variant import since
from ...bindings.internal.algorithms import CapacityScheduler, MicroBatchScheduler

ScheduledRequests: Any = ChunkLists if since("B2") else PlainLists
_POLICY: Any = bound.CapacitySchedulerPolicy


@dataclass
class SchedulerOutput:
    context_requests: list[Any] = field(default_factory=list)
    generation_requests: list[Any] = field(default_factory=list)
    paused_requests: list[Any] = field(default_factory=list)
    fitting_disagg_gen_init_requests: list[Any] = field(default_factory=list)
    num_fitting_requests: int = 0


class BindCapacityScheduler:
    def __init__(self, max_num_requests: int, kv_cache_manager: Any) -> None:
        self.kv_cache_manager = kv_cache_manager  # the bound one (surface 3.2)
        self.impl = CapacityScheduler(max_num_requests, _POLICY.GUARANTEED_NO_EVICT, has_kv_cache_manager=True)

    def schedule_request(self, active_requests: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        chosen: tuple[list[Any], list[Any], list[Any]] = self.impl(active_requests, self.kv_cache_manager)
        return chosen


class BindMicroBatchScheduler:
    def __init__(self, max_batch_size: int, max_num_tokens: int, chunk_unit: int | None = None) -> None:
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        first_come = bound.ContextChunkingPolicy.FIRST_COME_FIRST_SERVED
        chunking = None if chunk_unit is None else bound.ContextChunkingConfig(first_come, chunk_unit)
        self.impl = MicroBatchScheduler(chunking)

    def schedule(self, active_requests: list[Any], inflight_request_ids: set[int]) -> tuple[list[Any], list[Any]]:
        chosen: tuple[list[Any], list[Any]] = self.impl(
            active_requests, inflight_request_ids, self.max_batch_size, self.max_num_tokens
        )
        return chosen


class SimpleScheduler:
    def __init__(self, capacity_scheduler: Any, micro_batch_scheduler: Any) -> None:
        self.capacity_scheduler = capacity_scheduler
        self.micro_batch_scheduler = micro_batch_scheduler

    def schedule_request(self, active_requests: list[Any], inflight_request_ids: set[int]) -> SchedulerOutput:
        fitting, arriving, paused = self.capacity_scheduler.schedule_request(active_requests)
        contexts, generations = self.micro_batch_scheduler.schedule(fitting, inflight_request_ids)
        return SchedulerOutput(contexts, generations, paused, arriving, len(fitting))
