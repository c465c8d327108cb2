"""The scheduler: requests that generate come first, then chunks of prompts, then new requests in order of arrival.

Requests are admitted while there is room for their prompts. If there is no room for one more token of each, the last to
come gives its blocks back and waits again.
"""

from collections import deque
from dataclasses import dataclass

from trtllm_kvfix.engine.batch import Batch, generating_part, prompt_part
from trtllm_kvfix.engine.cache import Cache
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.errors import KvfixError


@dataclass
class Counts:
    preemptions: int = 0
    tokens_computed: int = 0  # of prompts
    reuse_lost: int = 0  # tokens that were promised to a prompt of a batch and evicted before its turn


class Scheduler:
    def __init__(self, config: EngineConfig, cache: Cache) -> None:
        self._config = config
        self._cache = cache
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order in which they were admitted
        self._seats = list(range(config.requests_max))  # free ones: the last that was freed is the next to be taken
        self.counts = Counts()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def next_batch(self) -> Batch:
        """The next batch: each of its requests has blocks, and has moved on by what it computes."""
        growing = self._growing()
        needed = self._cache.blocks_to_grow(growing)
        preempted = False
        while needed > self._cache.free_blocks():
            if self._cache.leaving:
                self._cache.wait_for_leaving()
                continue
            growing = self._preempt(growing)
            needed = self._cache.blocks_to_grow(growing)
            preempted = True
        budget = self._config.tokens_max - len(growing) - self._left_of_prompts()
        arriving = [] if preempted else self._arriving(budget, self._cache.free_blocks() - needed)
        refused = self._cache.prepare(arriving, growing)
        self._give_back(refused)
        batch = Batch()
        budget = self._config.tokens_max - len(growing)
        for request in self.running:
            if budget and request.in_prompt and not request.loading and request not in growing:
                batch.parts.append(prompt_part(request, budget))
                budget -= batch.parts[-1].tokens
        self.counts.tokens_computed += batch.tokens
        batch.parts.sort(key=lambda part: part.tokens == 1)  # chunks first, as a step computes them
        batch.parts += [generating_part(request) for request in growing]
        return batch

    def let_go(self, request: Request) -> None:
        """A request ends, or waits again. Its blocks are free for the next step, which runs behind the last one."""
        self._cache.remove(request)
        self.running.remove(request)
        self._seats.append(request.seat)

    def _growing(self) -> list[Request]:
        return [r for r in self.running if not r.in_prompt and not r.all_asked]

    def _left_of_prompts(self) -> int:
        return sum(r.prompt_len - r.context_current_position for r in self.running)

    def _preempt(self, growing: list[Request]) -> list[Request]:
        if len(self.running) == 1:
            raise KvfixError("one request does not fit into the cache: give the engine more blocks")
        last = self.running[-1]
        self.let_go(last)
        last.wait_again()
        self.counts.preemptions += 1
        self.waiting.appendleft(last)
        return [request for request in growing if request is not last]

    def _arriving(self, budget: int, free: int) -> list[Request]:
        """The requests at the head of the queue for which there is room together. They get their seats."""
        arriving: list[Request] = []
        self._promised: dict[int, int] = {}
        while self.waiting and self._seats and budget > 0:
            request = self.waiting[0]
            needed, promised = self._cache.prospect(request)
            if needed > free:
                break
            free -= needed
            budget -= len(request.tokens) - promised
            self.waiting.popleft()
            request.begin(self._seats.pop())
            self._promised[request.request_id] = promised
            arriving.append(request)
        self.running += arriving
        return arriving

    def _give_back(self, refused: list[Request]) -> None:
        for request in reversed(refused):
            self.running.remove(request)
            self._seats.append(request.seat)
            request.wait_again()
            self.waiting.appendleft(request)
        for request in self.running[::-1]:
            promised = self._promised.pop(request.request_id, None)
            if promised is not None:
                self.counts.reuse_lost += max(0, promised - request.context_current_position)
