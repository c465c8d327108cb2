"""Capacity scheduler for our manager, because upstream's is bound and takes only bound managers.

GUARANTEED_NO_EVICT: a request starts when the blocks up to its last token are free beside those of all requests that
have started, so no request is ever paused.

MAX_UTILIZATION: a request starts when its prompt fits and leaves room for a block. When the running requests cannot all
take their next token, the newest are paused: upstream gives their blocks back, and they return with what they have
generated as part of their prompts. What they computed stays cached until the room is needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.keywords import named
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.managers.prompts import prompt_of
from trtllm_kvfix.managers.questions import Blocks, fits, less
from trtllm_kvfix.native import StartAnswer

Ahead = Callable[[Any], int]  # tokens behind the prompt for which a request must find room to start
Scheduled = tuple[list[Any], list[Any], list[Any]]  # requests that fit, wait for another server's cache (none), pause


def scheduler_for(
    max_num_requests: int,
    kv_cache_manager: Any,
    peft_cache_manager: Any = None,
    scheduler_policy: Any = "GUARANTEED_NO_EVICT",
    two_step_lookahead: bool = False,
) -> "Policy | None":
    """None for a bound manager, whose scheduler is upstream's."""
    if not isinstance(kv_cache_manager, NativeKvCache):
        return None
    policy = POLICIES.get(named(scheduler_policy))
    if policy is None:
        raise NotServed(f"capacity_scheduler_policy={named(scheduler_policy)}: only {', '.join(POLICIES)} are served")
    if two_step_lookahead:
        raise NotServed("two_step_lookahead=True: speculative decoding is not served")
    return policy(max_num_requests, kv_cache_manager, peft_cache_manager)


GAINS_BY_WAITING, LACKS_ROOM = StartAnswer.GAINS_BY_WAITING, StartAnswer.LACKS_ROOM


class Policy(ABC):
    def __init__(self, max_num_requests: int, kv_cache_manager: NativeKvCache, peft_cache_manager: Any) -> None:
        self.max_num_requests = max_num_requests
        self.kv_cache_manager = kv_cache_manager
        self.peft_cache_manager = peft_cache_manager

    @abstractmethod
    def schedule_request(self, active_requests: Any) -> Scheduled: ...

    def _start(self, chosen: list[Any], waiting: Iterable[Any], free: Blocks, tokens_ahead: Ahead) -> None:
        """Adds to the chosen requests, which run, as many of the others as fit, in their order."""
        questions = self.kv_cache_manager.questions
        adapters = _Adapters(self.peft_cache_manager, chosen)
        starting = questions.starting(free)
        for request in waiting:
            if len(chosen) >= self.max_num_requests:
                break
            prompt = prompt_of(request)
            ahead = tokens_ahead(request)
            verdict = questions.ask(starting, prompt, ahead)
            if self._wants_estimates(request):
                # Newer schedulers of chunks charge by this estimate. One that is too high would exceed their budget.
                request.estimated_reusable_tokens = starting.tokens_found
            if verdict == GAINS_BY_WAITING:
                continue
            if verdict == LACKS_ROOM and not questions.fits_closely(starting, prompt, ahead):
                break  # later requests must not overtake it for ever
            if adapters.claim(request):
                starting.charge()
                chosen.append(request)

    def _wants_estimates(self, request: Any) -> bool:
        return self.kv_cache_manager.enable_block_reuse and hasattr(request, "estimated_reusable_tokens")


class GuaranteedNoEvict(Policy):
    def schedule_request(self, active_requests: Any) -> Scheduled:
        self.kv_cache_manager.start_scheduling()
        questions = self.kv_cache_manager.questions
        started, waiting, loading = questions.by_progress(active_requests)
        chosen = started[: self.max_num_requests]
        if waiting and len(chosen) < self.max_num_requests:
            free = less(questions.free_blocks(), questions.still_to_take(started + loading))
            self._start(chosen, waiting, free, lambda each: int(each.max_new_tokens))
        return chosen, [], []


class MaxUtilization(Policy):
    def schedule_request(self, active_requests: Any) -> Scheduled:
        self.kv_cache_manager.start_scheduling()
        questions = self.kv_cache_manager.questions
        chosen, waiting, _ = questions.by_progress(active_requests)
        paused: list[Any] = []
        free, next_step = questions.free_blocks(), questions.next_step(chosen)
        while not fits(next_step, free):
            paused.append(chosen.pop())
            free, next_step = questions.free_without(paused), questions.next_step(chosen)
        del chosen[self.max_num_requests :]
        if not paused and waiting:
            # Without a block to spare the request would be paused at once; but alone it need not share.
            ahead = self.kv_cache_manager.tokens_per_block if chosen else 1
            self._start(chosen, waiting, less(free, next_step), lambda _: ahead)
        return chosen, [], paused


POLICIES: dict[str, type[Policy]] = {"GUARANTEED_NO_EVICT": GuaranteedNoEvict, "MAX_UTILIZATION": MaxUtilization}


class _Adapters:
    """Pages of LoRA adapters on the device: each adapter is there once, however many requests use it."""

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
