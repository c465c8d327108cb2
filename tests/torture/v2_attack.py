"""A server of the stand-in on V2 under attack, in its own loop. Requests end in every place, are suspended, resumed,
loaded and computed again. Pages leave the device and come back, groups of layers are rebalanced. Drafts are proposed,
and some of them accepted.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import Any
from unittest import mock

from tests.fixes.applied import standing_in
from tests.standin.serving import PYEXECUTOR, Server

from .v2_books import Books, Levels, OurLevels
from .v2_contents import Contents, Launch, Load, Piece

STEPS = int(os.environ.get("TORTURE_STEPS", "300"))
# Of canaries that have nothing to say. `make ci-long` listens for longer.
SILENT_STEPS = int(os.environ.get("TORTURE_STEPS", "150"))
BATCH, BUDGET, PAGES, HOST_PAGES = 6, 40, 26, 80
ACTIVE, TOKENS_MAX = 9, 60
HAPPENS = {
    *(f"cancel while {where}" for where in ("waiting", "prefilling", "loading", "generating")),
    "fail while admitted", "fail between launch and update",
    "suspend", "suspend for room", "adjust", "compute again", "load", "reuse",
}  # fmt: skip
MakeLevels = Callable[[int, int, int], Levels]


@dataclass(frozen=True)
class Way:
    variant: str
    overlap: bool = True
    draft: bool = False  # upstream's own fence covers the target's copies from D on, so a draft's are held there
    by_layer: bool = False
    trim: bool = False  # the build skips launches that are equal to the last one
    guesses: tuple[int, ...] = (0, 0, 1, 3)  # how many tokens a step drafts
    awaited: bool = True  # from D on upstream can wait for the target's copies, but not with AutoDeploy's engine

    @property
    def llm_args(self) -> dict[str, Any]:
        cache = {"use_kv_cache_manager_v2": True, "enable_swa_scratch_reuse": self.by_layer}
        sizes = {"max_batch_size": BATCH, "max_num_tokens": BUDGET, "max_seq_len": 128, "enable_chunked_prefill": True}
        drafting: dict[str, Any] = {"speculative_config": {}} if self.draft else {}
        return sizes | drafting | {"kv_cache_config": cache, "disable_overlap_scheduler": not self.overlap}

    def __str__(self) -> str:
        marks = [name for name in ("draft", "by_layer", "trim") if getattr(self, name)]
        loop = ("overlap" if self.overlap else "plain") + ("" if self.awaited else "-not-awaited")
        return "-".join([self.variant, loop, *marks])

    @contextmanager
    def build(self) -> Iterator[None]:
        with (
            mock.patch.dict(os.environ, {"STANDIN_STEP_PROLOGUE_TRIM": "1"} if self.trim else {}),
            standing_in(self.variant),
        ):
            yield


@contextmanager
def attacked(
    way: Way, seed: object, make: MakeLevels = OurLevels, kind: "type[Attack] | None" = None, **options: Any
) -> Iterator["Attack"]:
    """Inside the stand-in. Its loop runs in this thread, in `Attack.run`."""
    common = import_module("tensorrt_llm._standin.v2.common")
    executor = import_module(f"{PYEXECUTOR}.py_executor").PyExecutor

    def books(tokens_per_block: int, _pages: int, *, enable_block_reuse: bool) -> Books:
        del enable_block_reuse
        return Books(tokens_per_block, make(tokens_per_block, PAGES, HOST_PAGES))

    with mock.patch.object(common, "KVCacheManagerPy", books), mock.patch.object(executor, "start_worker"):
        server = Server(way.llm_args)
    if way.draft:  # it may not fail where the target does not
        draft = server.executor.resource_manager.resource_managers[_kinds().DRAFT_KV_CACHE_MANAGER]
        draft.impl.levels = OurLevels(draft.tokens_per_block, 40 * BATCH, HOST_PAGES)
    yield (kind or Attack)(server, way, Random(f"{seed} {way}"), **options)
    server.close()


def _kinds() -> Any:
    return import_module(f"{PYEXECUTOR}.resource_manager").ResourceManagerType


@dataclass
class Loading:
    request: Any
    load: Load
    due: int  # at this iteration


@dataclass(eq=False)
class Attack:
    server: Server
    way: Way
    random: Random
    loads_outlive: bool = False  # a control: what ends while it loads lets go of its pages at once
    loading: float = 0.3  # of the prompts, where there is something to load
    failing: float = 0.02  # of the requests in each step, between their launch and the update
    did: dict[str, int] = field(default_factory=dict)  # how often
    _iteration: int = 0
    _numbers: int = 0
    _stops_at: int = 0
    _until: Collection[str] = ()

    def __post_init__(self) -> None:
        executor = self.executor = self.server.executor
        managers = executor.resource_manager.resource_managers
        self.manager = managers[_kinds().KV_CACHE_MANAGER]
        self._managers = [self.manager, *(m for m in managers.values() if m is not self.manager)]
        levels = self.manager.impl.levels
        self.contents = Contents(self.manager.tokens_per_block, levels.order, self.manager._stream.cuda_stream)
        levels.begin(self.contents.move, executor.execution_stream.synchronize)
        self._names: dict[int, list[object]] = {}
        self._computed: dict[int, int] = {}
        self._loading: dict[int, Loading] = {}
        self._ending: set[int] = set()  # cancelled while they load
        self._unsettled: set[int] = set()  # they have a cache, and no position yet
        self._owed: dict[int, int] = {}  # pages of drafts that were not accepted
        executor.scheduler = self
        for name in ("_fetch_new_requests", "_sample_async", "_terminate_request", "_update_requests",
                     "_handle_canceled_requests"):  # fmt: skip
            setattr(executor, name, getattr(self, name))
        if not self.way.awaited:
            executor._wait_for_model_engine_input_copy = lambda: None
        self._update = executor.resource_manager.update_resources
        executor.resource_manager.update_resources = self._update_resources
        self._launch = executor.model_engine._forward_step
        executor.model_engine._forward_step = self._forward_step
        self.output = import_module(f"{PYEXECUTOR}.scheduler").SchedulerOutput
        self.rebalance: Callable[[], None] = self._rebalance  # a loop that does it itself has its own

    def run(self, steps: int = STEPS, until: Collection[str] = ()) -> None:
        """Go on behind these steps until all of this has happened: not for more than three times as many."""
        self._stops_at, self._until = steps, until
        with self.server.stall(draft=self.way.draft):
            self.executor._run_worker()
        if self.executor.event_loop_error is not None:
            raise self.executor.event_loop_error
        self.contents.judge()

    @property
    def corrupt_tables(self) -> list[Any]:
        """Block offsets that reached attention wrong."""
        witnesses = [self.server.witness, self.server.draft_witness]
        return [each for witness in witnesses if witness is not None for each in witness.corrupt("block offsets")]

    def leftovers(self) -> list[str]:
        held = [f"requests {sorted(manager.kv_cache_map)} have a cache" for manager in self._managers
                if manager.kv_cache_map]  # fmt: skip
        return held + [each for manager in self._managers for each in manager.impl.levels.leftovers()]

    def _does(self, what: str, of: float = 1.0) -> bool:
        """Whether to, with this probability."""
        if self.random.random() >= of:
            return False
        self.did[what] = self.did.get(what, 0) + 1
        return True

    def happened(self, what: str) -> None:
        self._does(what)

    # What the loop calls, with its own work in the middle. The class has it, with the fixes.

    def _fetch_new_requests(self, *, idle: bool) -> None:
        del idle
        self._iteration += 1
        assert self._iteration < 20 * self._stops_at + 2000, "nothing goes on any more"
        for loading in [each for each in self._loading.values() if each.due <= self._iteration]:
            self._finish_load(loading)
        steps = self.server.witness.steps
        if steps >= self._stops_at and (steps >= 3 * self._stops_at or self.did.keys() >= set(self._until)):
            self.executor.is_shutdown = True
            return
        while len(self.executor.active_requests) < ACTIVE:
            self.executor.active_requests.append(self._drawn())
        self._disturb()

    def _sample_async(self, batch: Any, outputs: Any) -> Any:
        """Between a launch and the update."""
        for request in list(self.executor.active_requests):
            if not self._is_loading(request) and self._does("fail between launch and update", self.failing):
                self._fail(request)
        return type(self.executor)._sample_async(self.executor, batch, outputs)

    def _update_requests(self, state: Any, *_: Any) -> None:
        for request in state.scheduled_requests.generation_requests:
            self._accept(request, state.scheduled_requests.accepted[request.request_id])
        type(self.executor)._update_requests(self.executor, state)
        self.contents.judge()

    @staticmethod
    def _accept(request: Any, drafts: int) -> None:
        """Before the token that the step has sampled behind them, with which an answer may end."""
        sampler = import_module(f"{PYEXECUTOR}.sampler")
        room = request.max_new_tokens - request.max_num_generated_tokens - 1
        for _ in range(min(drafts, room) if request.is_generation_in_progress_state else 0):
            sampler.append_token(request, sampler.sampled(request, len(request.output_tokens)))

    def _handle_canceled_requests(self) -> None:
        """Upstream's newest has a load end before its request does."""
        known, executor = self.executor.canceled_req_ids, self.executor
        if not self.loads_outlive:
            self._ending |= {each for each in known if each in self._loading}
        executor.canceled_req_ids = [each for each in known if each not in self._ending]
        type(executor)._handle_canceled_requests(executor)

    def _terminate_request(self, request: Any) -> None:
        if request.request_id in self.manager.kv_cache_map:
            type(self.executor)._terminate_request(self.executor, request)
        self._forget(request)

    def _forget(self, request: Any) -> None:
        for books in (self._computed, self._owed, self._names):
            books.pop(request.request_id, None)
        self._unsettled.discard(request.request_id)

    def _update_resources(self, batch: Any, *args: Any) -> None:
        living = [each for each in batch.generation_requests if each.request_id in self.manager.kv_cache_map]
        for request in living:
            owed = self._owed.get(request.request_id, 0) + batch.rejected.get(request.request_id, 0)
            request.py_rewind_len = owed if self.manager.is_request_active(request.request_id) else 0
            self._owed[request.request_id] = owed - request.py_rewind_len
            request.py_num_accepted_draft_tokens = batch.accepted.get(request.request_id, 0)
        self._update(batch, *args)
        for request in batch.generation_requests:
            for manager in self._managers:
                if manager.is_request_active(request.request_id):
                    cache = manager.kv_cache_map[request.request_id]
                    cache.slide(min(len(request.get_tokens(0)) - 1, cache.capacity))

    def _forward_step(self, inputs: Any, metadata: Any) -> Any:
        batch = inputs["batch"]
        drafted = {each.request_id: len(each.py_draft_tokens) for each in batch.generation_requests}
        batch.accepted = {request_id: self.random.randint(0, drafts) for request_id, drafts in drafted.items()}
        batch.rejected = {request_id: drafts - batch.accepted[request_id] for request_id, drafts in drafted.items()}
        result = self._launch(inputs, metadata)
        tensors = self.server.tensors
        seen = tensors.pinned(*metadata.kv_cache_block_offsets.shape)
        seen.copy_(metadata.kv_cache_block_offsets, non_blocking=True)
        done = tensors.event()
        done.record()
        pieces = [self._prompt_of(request) for request in batch.context_requests]
        pieces += [self._answer_of(request, batch) for request in batch.generation_requests]
        self.contents.note(*self.manager.impl.levels.take_moves())
        self.contents.note(Launch(pieces, seen, self.manager._scales_and_offsets()[0], done))
        return result

    def _prompt_of(self, request: Any) -> Piece:
        begin = request.context_current_position
        return self._piece(request, begin, begin + request.context_chunk_size)

    def _answer_of(self, request: Any, batch: Any) -> Piece:
        begin, number = self._computed.get(request.request_id, 0), request.request_id
        return self._piece(request, begin, begin + 1 + batch.accepted[number], batch.rejected[number])

    def _piece(self, request: Any, begin: int, end: int, rejected: int = 0) -> Piece:
        self._computed[request.request_id] = end
        return Piece(request.request_id, begin, end, self._names_of(request, end), rejected)

    def _names_of(self, request: Any, end: int) -> list[object]:
        """The host learns a token when the device has long gone on with it; here both know how it is sampled."""
        sampled = import_module(f"{PYEXECUTOR}.sampler").sampled
        answer = [sampled(request, position) for position in range(max(0, end - request.orig_prompt_len))]
        names = self._names.setdefault(request.request_id, [])
        for token in (request.input_tokens + answer)[len(names) : end]:
            names.append(hash((names[-1] if names else None, token)))
        return names[:end]

    # The scheduler: it allocates, and takes pages from others where there are none.

    def schedule_request(self, active: list[Any], _inflight: Any) -> Any:
        output, self._left = self.output(), BUDGET
        for request in [each for each in active if each.is_generation_in_progress_state]:
            if self._batch_size(output) < BATCH and not self._does("skip a generation", 0.05):
                self._schedule_generation(request, output)
        for request in [each for each in active if each.is_context_init_state]:
            if self._batch_size(output) < BATCH and self._has_cache(request, output):
                self._schedule_chunk(request, output)
        if not self._batch_size(output) or self.random.random() < 0.08:
            self._make_room(output)
        return output

    @staticmethod
    def _batch_size(output: Any) -> int:
        return len(output.context_requests) + len(output.generation_requests)

    def _schedule_generation(self, request: Any, output: Any) -> None:
        drafts = self.random.choice(self.way.guesses)
        if self._left < 1 + drafts:
            return
        request.py_draft_tokens = [0] * drafts
        with_row = self._resumed(request, output)
        if with_row and self._insisting(request, output, lambda: self.manager.try_allocate_generation(request)):
            self._left -= 1 + drafts
            output.generation_requests.append(request)

    def _has_cache(self, request: Any, output: Any) -> bool:
        number = request.request_id
        if number not in self.manager.kv_cache_map or number in self._unsettled:
            if number not in self.manager.kv_cache_map and len(self.manager.kv_cache_map) >= BATCH:
                return False
            self._unsettled.add(number)  # upstream's manager settles no position where it finds no room
            if not self._insisting(request, output, lambda: bool(self.manager.prepare_context(request))):
                return False
            self._unsettled.discard(number)
            if self.manager.kv_cache_map[number].num_committed_tokens:
                self._does("reuse")
            for draft in self._managers[1:]:
                draft.prepare_context(request)
                assert draft.resume_request(request)
            if self._does("fail while admitted", 0.08):
                self._fail(request)
                return False
        if not self._resumed(request, output):
            return False
        return not (request.is_first_context_chunk and self._begins_to_load(request))

    def _schedule_chunk(self, request: Any, output: Any) -> None:
        at = request.context_current_position
        request.context_chunk_size = request.context_remaining_length
        chunk = min(request.context_chunk_size, self._left, self.random.choice((8, 12, 40)))
        end = at + chunk
        if end < request.prompt_len:
            end -= end % self.manager.tokens_per_block
        if end > at and self._insisting(request, output, lambda: self._covers(request, end)):
            request.context_chunk_size = end - at
            self._left -= end - at
            output.context_requests.append(request)

    def _covers(self, request: Any, end: int) -> bool:
        caches = [manager.kv_cache_map[request.request_id] for manager in self._managers]
        return all(cache.resize(max(cache.capacity, end)) for cache in caches)

    def _resumed(self, request: Any, output: Any) -> bool:
        if self.manager.is_request_active(request.request_id):
            return True
        return self._insisting(request, output, lambda: self.manager.resume_request(request))

    def _insisting(self, request: Any, output: Any, allocate: Callable[[], bool]) -> bool:
        """Not on behalf of one that loses its cache, as upstream's do whose prefix finds no room."""
        had_cache = request.request_id in self.manager.kv_cache_map
        while not allocate():
            victims = [each for each in self._suspendable(output) if each is not request]
            if not victims or (had_cache and request.request_id not in self.manager.kv_cache_map):
                return False
            self._does("suspend for room")
            self.manager.suspend_request(self.random.choice(victims))
        return True

    def _suspendable(self, output: Any) -> list[Any]:
        busy = {each.request_id for each in output.context_requests + output.generation_requests}
        active = self.executor.active_requests
        return [each for each in active if each.request_id not in busy and not self._is_loading(each)
                and self.manager.is_request_active(each.request_id)]  # fmt: skip

    def _make_room(self, output: Any) -> None:
        """Who has generated and is not in the batch is computed again."""
        held = [each for each in self.executor.active_requests if each.request_id in self.manager.kv_cache_map]
        chosen = [each for each in held if each.is_generation_in_progress_state
                  and each not in output.generation_requests][:1]  # fmt: skip
        output.paused_requests += chosen
        for request in chosen:
            self._does("compute again")
            self._forget(request)
        if held and not chosen and not self.is_loading and not self._batch_size(output):  # else nothing would go on
            self.executor.canceled_req_ids.append(held[0].request_id)
            self.executor._handle_canceled_requests()
            self.executor._handle_responses()

    # What comes from outside.

    def _drawn(self) -> Any:
        self._numbers += 1
        shared = [self.random.randrange(3)] * self.random.choice((0, 8, 16))
        own = [1000 * self._numbers + position for position in range(self.random.randint(3, 20))]
        return self.server.request(self._numbers, shared + own, self.random.randint(2, 12))

    def _disturb(self) -> None:
        for request in list(self.executor.active_requests):
            number = request.request_id
            if len(request.get_tokens(0)) > TOKENS_MAX or self._is_cancelled(request):
                self.executor.canceled_req_ids.append(number)
            elif self._is_loading(request) or not self.manager.is_request_active(number):
                continue
            elif self._does("suspend", 0.03):
                self.manager.suspend_request(request)
        if not self.is_loading and self._does("rebalance", 0.03):
            self.rebalance()

    def _is_cancelled(self, request: Any) -> bool:
        if self._is_loading(request):
            return self._does("cancel while loading", 0.1)
        if request.request_id not in self.manager.kv_cache_map:
            return self._does("cancel while waiting", 0.01)
        if request.is_generation_in_progress_state:
            return self._does("cancel while generating", 0.01)
        return self._does("cancel while prefilling", 0.03)

    def _fail(self, request: Any) -> None:
        """As upstream does with the requests of an error."""
        self.executor.active_requests.remove(request)
        request.state = type(request.state).GENERATION_COMPLETE
        self.executor._terminate_request(request)
        self.executor._respond(request, "failed")

    def _rebalance(self) -> None:
        """Upstream drains the streams, suspends all, moves pages, and resumes all."""
        self.executor.execution_stream.synchronize()
        active = [each for each in self.executor.active_requests if self.manager.is_request_active(each.request_id)]
        for request in active:
            self.manager.suspend_request(request)
        self.adjust()
        for request in active:
            self.manager.resume_request(request)  # one that finds no room is resumed by the scheduler

    def adjust(self) -> None:
        if self.manager.impl.levels.adjust():
            self._does("adjust")

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def _is_loading(self, request: Any) -> bool:
        return request.request_id in self._loading

    # Prefixes that a connector brings.

    def _begins_to_load(self, request: Any) -> bool:
        begin, size = request.context_current_position, self.manager.tokens_per_block
        end = (request.prompt_len - 1) // size * size
        if end <= begin or getattr(request, "has_loaded", False) or self.random.random() > self.loading:
            return False
        request.has_loaded = True
        if not self._covers(request, end):
            return False
        self._does("load")
        pages = [self.manager.impl.pages_of(request.request_id, group) for group in range(2)]
        load = Load(pages, begin, end, self._names_of(request, end))
        self._loading[request.request_id] = Loading(request, load, self._iteration + self.random.randint(2, 8))
        request.state = type(request.state).DISAGG_GENERATION_TRANS_IN_PROGRESS
        return True

    def _finish_load(self, loading: Loading) -> None:
        request, number = loading.request, loading.request.request_id
        del self._loading[number]
        self.contents.note(*self.manager.impl.levels.take_moves(), loading.load)
        if number in self._ending:
            self._ending.discard(number)
            self.executor.canceled_req_ids.append(number)
        elif number not in self.manager.kv_cache_map:
            return
        request.state = type(request.state).CONTEXT_INIT
        request.context_chunk_size = request.prompt_len - request.context_current_position
        self.manager._settle_position(request, loading.load.end)
        self.manager.kv_cache_map[number].commit(loading.load.end)
