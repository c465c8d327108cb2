"""The engine: one loop, which prepares step N + 1 while the device runs step N, and then reads the tokens of N."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from trtllm_kvfix.engine.batch import Batch
from trtllm_kvfix.engine.cache import Cache
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.forward import Forward
from trtllm_kvfix.engine.inputs import Inputs
from trtllm_kvfix.engine.machine import Fence, Machine
from trtllm_kvfix.engine.model import Model
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.engine.scheduler import Scheduler
from trtllm_kvfix.engine.tables import tables_for
from trtllm_kvfix.errors import SettingsError


@dataclass
class Step:
    """Given to the device, not read yet."""

    number: int
    batch: Batch
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
        self._flying: deque[Step] = deque()
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

    def _launch(self, batch: Batch) -> None:
        step = Step(self.steps, batch, self._ends[self.steps % 2])
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
        step.end.record()
        self._flying.append(step)
        if every and not late:
            step.end.wait()

    def _read(self, step: Step) -> list[Request]:
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
