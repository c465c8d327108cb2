"""The engine: one loop, which prepares step N + 1 while the device runs step N, and then reads the tokens of N."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from trtllm_kvfix.engine.batch import StepBatch, generating_part, prompt_part
from trtllm_kvfix.engine.cache import Cache
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.forward import Forward
from trtllm_kvfix.engine.inputs import Inputs
from trtllm_kvfix.engine.machine import Fence, Machine
from trtllm_kvfix.engine.model import Model
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.engine.tables import tables_for
from trtllm_kvfix.errors import KvfixError, SettingsError


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

    def next_batch(self) -> StepBatch:
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
        batch = StepBatch()
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


@dataclass
class LaunchedStep:
    """Given to the device, not read yet."""

    number: int
    batch: StepBatch
    end: Fence


class Engine:
    def __init__(
        self, machine: Machine, model: Model, config: EngineConfig, now_s: Callable[[], float] = perf_counter
    ) -> None:
        self.config = config
        self._machine = machine
        self._now_s = now_s
        with machine.current():
            self.cache = Cache(machine, config, model)
            self._tables = tables_for(machine, config, self.cache)
            self._inputs = Inputs(machine, config)
            self._forward = Forward(machine, config, model, self.cache, self._tables, self._inputs)
            machine.settle()
        self.scheduler = Scheduler(config, self.cache)
        self._ends = [Fence(machine, "a step") for _ in range(2)]
        self._flying: deque[LaunchedStep] = deque()
        self.steps = 0

    def submit(self, request: Request) -> None:
        longest = len(request.prompt) + request.max_new_tokens
        if not request.prompt or request.max_new_tokens < 1 or longest > self.config.length_max:
            raise SettingsError(
                f"request {request.request_id} has {len(request.prompt)} tokens and asks for {request.max_new_tokens}; "
                f"both must be at least 1, and together at most length_max={self.config.length_max}"
            )
        self.scheduler.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """The client has gone: drop the request, and the tokens that are on their way for it."""
        request.finished = True
        if request in self.scheduler.waiting:
            self.scheduler.waiting.remove(request)
        elif request in self.scheduler.running:
            with self._machine.current():
                self.scheduler.let_go(request)

    @property
    def busy(self) -> bool:
        return len(self.scheduler) > 0 or len(self._flying) > 0 or len(self.cache.leaving) > 0

    def step(self) -> list[Request]:
        """One iteration. Returns those that have ended in it."""
        with self._machine.current():
            self.cache.begin()
            batch = self.scheduler.next_batch()
            if batch.parts:
                self._launch(batch)
            ahead = 1 if self.config.overlap and batch.parts else 0
            ended: list[Request] = []
            while len(self._flying) > ahead:
                ended += self._read(self._flying.popleft())
            return ended

    def run(self, requests: Sequence[Request] = ()) -> None:
        for request in requests:
            self.submit(request)
        while self.busy:
            self.step()

    def close(self) -> None:
        with self._machine.current():
            self._machine.settle()
            self._forward.close()
            self._tables.close()
            self.cache.close()

    def _launch(self, batch: StepBatch) -> None:
        step = LaunchedStep(self.steps, batch, self._ends[self.steps % 2])
        self.steps += 1
        every = self.config.late_every
        late = every > 0 and self.steps % every == 0
        self.cache.transfer(batch)
        if late:
            self._machine.hold()
        self._inputs.ship(batch)
        if late:
            self._machine.hold()  # a wait for the inputs does not wait for the tables
        self._tables.ship([part.request for part in batch.parts])
        self._forward.launch(batch, step.number)
        self.cache.launched(batch)
        step.end.record()
        self._flying.append(step)
        if every and not late:
            step.end.wait()

    def _read(self, step: LaunchedStep) -> list[Request]:
        """Read a step: its tokens go to the answers, and its chunks are in the cache."""
        step.end.wait()
        tokens, now_s = self._forward.tokens(step.number), self._now_s()
        ended: list[Request] = []
        for part in step.batch.parts:
            request = part.request
            if request.finished:
                continue
            if part.in_prompt and request in self.scheduler.running:
                self.cache.store(request)
            if part.says and request.take(tokens[part.seat], now_s):
                ended.append(request)
                self._let_go(request)
        return ended

    def _let_go(self, request: Request) -> None:
        if request in self.scheduler.running:
            self.scheduler.let_go(request)
        else:
            self.scheduler.waiting.remove(request)
