"""The newest upstream around a connector: it reserves prefixes while it schedules, takes some of what it was promised,
some of the time, and may come back on what it has accepted until the step begins. One rank."""

import random
from typing import Any, NamedTuple

from trtllm_kvfix.native import OutOfBlocks, SequenceRequest
from trtllm_kvfix.offload.patches import computing_what_did_not_come

from .executor import TOKENS_PER_BLOCK, Executor
from .upstream_double import ConnectorManager, Request, SchedulerOutput, State


class PrefixLoad(NamedTuple):
    reservation_id: int
    request_id: int
    start: int
    end: int
    is_async: bool
    block_ids_by_layer_group: list[list[int]]
    tokens: list[int]
    cache_salt: str | None


class ReservingManager(ConnectorManager):
    """Its books of reservations, as upstream keeps them and under upstream's names."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._numbers = 0
        self._prefix_reservations: dict[int, tuple[int, int, int]] = {}  # request -> number, start, end
        self._prefix_loads: dict[int, PrefixLoad] = {}
        self._prefix_load_requests: dict[int, Request] = {}
        self._dispatched_prefix_load_ids: set[int] = set()
        self._finished_load_terminations: list[Request] = []
        self._ending: set[int] = set()  # requests that end once their load is over
        self._over: list[int] = []

    def reserve_prefix(self, request: Request, local_end: int) -> tuple[int, int, int] | None:
        assert request.request_id not in self._prefix_reservations
        self._numbers += 1
        count, is_async = self.scheduler.reserve_prefix(request, local_end, self._numbers)
        assert isinstance(count, int) and count >= 0 and is_async == (count > 0)
        if count:
            self._prefix_reservations[request.request_id] = self._numbers, local_end, local_end + count
        return self._prefix_reservations.get(request.request_id)

    def trim(self, request: Request, end: int) -> None:
        number, start, reserved_end = self._prefix_reservations[request.request_id]
        self.release(request, number, end, reserved_end)
        self._prefix_reservations[request.request_id] = number, start, end
        if start == end:
            del self._prefix_reservations[request.request_id]

    def release(self, request: Request, number: int, start: int, end: int) -> None:
        if start < end:
            self.scheduler.release_prefix_reservation(request, number, start, end)

    def accept_prefix_load(self, request: Request, blocks: list[int]) -> None:
        number, start, end = self._prefix_reservations.pop(request.request_id)
        load = PrefixLoad(number, request.request_id, start, end, True, [blocks], request.get_tokens(0), None)
        self._prefix_loads[number], self._prefix_load_requests[request.request_id] = load, request

    def free(self, request: Request, output: SchedulerOutput | None = None) -> None:
        """The allocation of a request goes, to be asked for again. `output`: of a step reported and not begun."""
        for load in [one for one in self._prefix_loads.values() if one.request_id == request.request_id]:
            assert load.reservation_id not in self._dispatched_prefix_load_ids, "its load owns the blocks"
            self.release(request, load.reservation_id, load.start, load.end)
            del self._prefix_loads[load.reservation_id], self._prefix_load_requests[request.request_id]
            if output is not None:
                output.prefix_loads.remove(load)
                super().tell(output)
        if request.request_id in self._prefix_reservations:
            self.release(request, *self._prefix_reservations.pop(request.request_id))
        self._known.pop(request.request_id, None)
        self.finished_loading.pop(request.request_id, None)
        self.scheduler.request_reset(request)

    def tell(self, output: SchedulerOutput) -> None:
        begun = self._dispatched_prefix_load_ids
        output.prefix_loads = [load for number, load in self._prefix_loads.items() if number not in begun]
        super().tell(output)
        self.before_dispatch(output)
        begun.update(self._prefix_loads)

    def before_dispatch(self, output: SchedulerOutput) -> None:
        """The executor drops a request here, if it does."""

    def get_finished(self) -> list[Request]:
        saved = super().get_finished()
        self._over += sorted(set(self.worker.get_finished_prefix_loads()) & self._dispatched_prefix_load_ids)
        return saved

    def finish_prefix_loads(self, reservation_ids: list[int]) -> None:
        for number in reservation_ids:
            load = self._prefix_loads.pop(number)
            request = self._prefix_load_requests.pop(load.request_id)
            self._dispatched_prefix_load_ids.remove(number)
            self.release(request, number, load.start, load.end)
            if load.request_id in self._ending:
                self._finished_load_terminations.append(request)
            else:
                request.state = State.CONTEXT
                self.finished_loading[load.request_id] = request


ReservingManager.finish_prefix_loads = computing_what_did_not_come(  # type: ignore[method-assign]
    ReservingManager.finish_prefix_loads
)


class ReservingExecutor(Executor):
    """An executor that draws at random what it takes of a promise."""

    manager: ReservingManager

    def __init__(self, *args: Any, **sizes: Any) -> None:
        super().__init__(*args, **sizes)
        self.random = random.Random(1)
        self.manager.worker.choosers.room.manager = self
        self.manager.before_dispatch = self._drop_one  # type: ignore[method-assign]
        self.tokens_per_block = TOKENS_PER_BLOCK
        self.came_to = dict.fromkeys(("all", "part", "nothing", "taken back", "computed instead", "ended"), 0)

    def step(self) -> None:
        over, self.manager._over = self.manager._over, []
        self.manager.finish_prefix_loads(over)
        for request in self.manager._finished_load_terminations:
            self.came_to["ended"] += 1
            request.cancelled = True
            self._finish(request)
        self.manager._finished_load_terminations.clear()
        super().step()

    def cancel(self, request: Request) -> None:
        if request.request_id in self.manager._prefix_load_requests:
            self.manager._ending.add(request.request_id)
        else:
            super().cancel(request)

    def preempt(self, request: Request) -> None:
        super().preempt(request)
        self.manager.free(request)

    def free_resources(self, request: Request) -> None:
        """Frees a request as the connector does, where a load failed."""
        self.came_to["computed instead"] += 1
        self.preempt(request)

    def _admit(self) -> None:
        for request in self.scheduler.schedule_request([*self.active, *self.waiting]):
            if request.state is not State.WAITING or len(self.active) >= self.batch:
                continue
            try:
                reused = self.cache.add_sequence(
                    SequenceRequest(
                        request.request_id, request.tokens, lora_id=request.lora_task_id, salt=request.cache_salt_id
                    )
                ).tokens_reused
            except OutOfBlocks:
                assert self.active, "a request that fits nowhere"
                return
            end = self._reserved(request, reused)
            if end > reused and self.active and self.random.random() < 0.2:
                self.came_to["nothing"] += 1
                self.cache.remove_sequence(request.request_id, store=False)
                self.manager.free(request)
                return
            self.waiting.remove(request)
            self.active.append(request)
            request.context_current_position = end
            request.state = State.LOADING if end > reused else State.CONTEXT
            self.loaded_tokens += end - reused
            blocks = self.blocks_of(request)
            if end > reused:
                self.manager.accept_prefix_load(request, blocks)
            self.manager.update_state_after_alloc(request, blocks)

    def _reserved(self, request: Request, reused: int) -> int:
        """Up to where it is loaded: whole blocks, and never the last token."""
        reserved = self.manager.reserve_prefix(request, reused)
        if reserved is None:
            return reused
        part = self.random.random() < 0.3
        end = min(reserved[2], request.prompt_len - 1) // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
        end = max(end - TOKENS_PER_BLOCK * self.random.randrange(1, 4) if part else end, reused)
        self.came_to["part" if part else "all"] += 1
        self.manager.trim(request, end)
        return end

    def _drop_one(self, output: SchedulerOutput) -> None:
        for load in output.prefix_loads[:1]:
            if self.random.random() < 0.2:
                self.came_to["taken back"] += 1
                request = self.manager._prefix_load_requests[load.request_id]
                self.manager.free(request, output)
                super().preempt(request)
