"""Which requests may run next, where the manager is ours: upstream's scheduler for that is bound and takes only bound
managers.

GUARANTEED_NO_EVICT: a request starts when the blocks until its last token are free beside those of everybody who has
started, so nobody is ever paused.
"""

from typing import Any

from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.keywords import named
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.managers.questions import Questions

POLICY = "GUARANTEED_NO_EVICT"


def scheduler_for(
    max_num_requests: int,
    kv_cache_manager: Any,
    peft_cache_manager: Any = None,
    scheduler_policy: Any = POLICY,
    two_step_lookahead: bool = False,
) -> "GuaranteedNoEvict | None":
    """None for a bound manager, whose scheduler is upstream's."""
    if not isinstance(kv_cache_manager, NativeKvCache):
        return None
    if named(scheduler_policy) != POLICY:
        raise NotServed(f"capacity_scheduler_policy={named(scheduler_policy)}: only {POLICY} is served")
    if two_step_lookahead:
        raise NotServed("two_step_lookahead=True: speculative decoding is not served")
    return GuaranteedNoEvict(max_num_requests, kv_cache_manager, peft_cache_manager)


class GuaranteedNoEvict:
    def __init__(self, max_num_requests: int, kv_cache_manager: NativeKvCache, peft_cache_manager: Any) -> None:
        self.max_num_requests = max_num_requests
        self.kv_cache_manager = kv_cache_manager
        self.peft_cache_manager = peft_cache_manager

    def schedule_request(self, active_requests: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """(those that fit, those that wait for another server's cache: none, those to pause: none)."""
        self.kv_cache_manager.start_scheduling()
        questions = self.kv_cache_manager.questions
        started, waiting = questions.by_progress(active_requests)
        chosen = started[: self.max_num_requests]
        if not waiting or len(chosen) == self.max_num_requests:
            return chosen, [], []
        free = questions.free_blocks() - questions.still_to_take(started)
        adapters = _Adapters(self.peft_cache_manager, started)
        wait_for = questions.being_computed() if self.kv_cache_manager.enable_block_reuse else set()
        for request in waiting:
            if len(chosen) >= self.max_num_requests:
                break
            if self._gains_by_waiting(request, questions, wait_for):
                continue
            needed = questions.to_completion(request)
            if needed > free:
                break  # whoever came later must not overtake it for ever
            if adapters.claim(request):
                free -= needed
                chosen.append(request)
        return chosen, [], []

    def _gains_by_waiting(self, request: Any, questions: Questions, wait_for: set[int]) -> bool:
        """Somebody computes the very block that it needs first: in a later iteration that is cached."""
        if not self.kv_cache_manager.enable_block_reuse:
            return False
        prefix = questions.prefix_of(request)
        if hasattr(request, "estimated_reusable_tokens"):
            # What newer schedulers of chunks charge by. An estimate that is too high would exceed their budget.
            request.estimated_reusable_tokens = prefix.tokens
        name = None if prefix.first_new is None else prefix.prompt.hash_of(prefix.first_new)
        if name is None:
            return False
        if name in wait_for:
            return True
        wait_for.add(name)
        return False


class _Adapters:
    """Pages of LoRA adapters on the device: an adapter is there once, whoever uses it."""

    def __init__(self, manager: Any, started: list[Any]) -> None:
        self._manager = manager
        self._here: set[int] = set()
        self._pages_left = 0 if manager is None else manager.max_device_pages
        for each in started if manager is not None else ():
            if each.lora_task_id is not None and each.lora_task_id not in self._here:
                self._here.add(each.lora_task_id)
                self._pages_left -= manager.determine_num_pages(each)

    def claim(self, request: Any) -> bool:
        if self._manager is None or request.lora_task_id is None or request.lora_task_id in self._here:
            return True
        pages = self._manager.determine_num_pages(request)
        if pages > self._pages_left:
            return False
        self._pages_left -= pages
        self._here.add(request.lora_task_id)
        return True
