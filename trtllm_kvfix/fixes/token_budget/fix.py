"""A batch that grew past max_num_tokens at admission is cut back to it (H3).

The scheduler charges for the reuse that it expects; when blocks are claimed, less may be found. Upstream then fails an
assertion in the executor's thread. This fix takes the excess off the batch, from the back: chunks get smaller where
prefill is chunked, else whole requests wait for the next iteration. It plans with numbers, carries the plan out, and
reports it.

The budget is enforced around `ResourceManager.prepare_resources`, and before a connector learns of the batch. Until D
the KV-cache manager reports the batch to the connector from inside its own `prepare_resources`, so where there is a
connector the batch is fitted just before that report.

A request that is put off leaves the batch and keeps its blocks, its slot and its state in the connector. It comes back
like a request whose load is over, without being added again. So nothing is stored, given back or reported twice, and if
the request ends first, upstream ends it like any other. A request for which a connector promised tokens in this step
stays, because the load is part of the step.

Batches of requests whose cache arrives from elsewhere reach the KV-cache manager directly, without the ResourceManager;
they compute nothing and are left alone.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from trtllm_kvfix.fixes.batches import (
    Contexts,
    cannot_be_split,
    context_tokens,
    enters,
    generation_tokens,
    is_arriving,
    main_v1_manager,
    managers_by_name,
    replace_contexts,
)
from trtllm_kvfix.fixes.computed_blocks.fix import holds_for
from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.hazards.h3_admission_reuse import simulated as h3
from trtllm_kvfix.log import log
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import CONNECTOR_PLACES, LLM_REQUEST, PY_EXECUTOR, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.overlay.vote import Mapping, Voting, Votings, mapping_of
from trtllm_kvfix.ranks import Tag

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


Says = Callable[[Any], bool]  # something about a request


@dataclass(frozen=True)
class Limits:
    max_num_tokens: int
    chunked_prefill: bool
    tokens_per_block: int
    runtime_tokens: Callable[[], int] | None = None  # of a generation whose drafts are on the device


@dataclass(frozen=True)
class Plan:
    """Planned changes, and the tokens before and after them. Making a plan changes nothing."""

    chunks: tuple[tuple[Any, int], ...]  # requests whose chunk ends earlier, with its new size
    put_off: tuple[Any, ...]
    tokens_before: int
    tokens: int

    def __bool__(self) -> bool:
        return bool(self.chunks or self.put_off)

    def decision(self) -> object:
        """The same on every rank that plans alike."""
        trimmed = [(request.py_request_id, size) for request, size in self.chunks]
        return trimmed, [request.py_request_id for request in self.put_off]


def batch_tokens(batch: Any, limits: Limits, spared: Says) -> int:
    contexts = sum(context_tokens(request) for request in batch.context_requests if not spared(request))
    return contexts + sum(generation_tokens(request, limits.runtime_tokens) for request in batch.generation_requests)


def plan(batch: Any, limits: Limits, *, spared: Says, stays: Says, order: list[Any] | None = None) -> Plan:
    """`spared` requests are left alone and cost nothing; those of which `stays` is true are not put off.

    order: the batch's context requests in the order of their claims to the budget; by default as they stand.
    """
    contexts = list(batch.context_requests) if order is None else order
    before = tokens = batch_tokens(batch, limits, spared)
    chunks: list[tuple[Any, int]] = []
    put_off: list[Any] = []
    for request in reversed([request for request in contexts if not spared(request)]):
        excess = tokens - limits.max_num_tokens
        if excess <= 0:
            break
        cost = context_tokens(request)
        size = _shorter(request, excess, limits.tokens_per_block) if limits.chunked_prefill else 0
        if size:
            chunks.append((request, size))
            tokens -= cost - size
        elif not stays(request) and len(put_off) + 1 < len(contexts) + len(batch.generation_requests):
            put_off.append(request)  # never an empty batch
            tokens -= cost
    return Plan(tuple(chunks), tuple(put_off), before, tokens)


def _shorter(request: Any, excess: int, tokens_per_block: int) -> int:
    """The size of a chunk that ends earlier, on a block's boundary; 0 where nothing would be left of it."""
    if cannot_be_split(request):
        return 0
    begin = request.context_current_position
    end = begin + context_tokens(request) - excess
    return int(max(0, end - end % tokens_per_block - begin))


class Made:
    """A plan that has been carried out, which can be taken back. One that fails half-way changes nothing."""

    def __init__(self, batch: Any, what: Plan) -> None:
        self._contexts = Contexts(batch)
        self._chunks = [(request, request.context_chunk_size) for request, _ in what.chunks]
        try:
            for request, size in what.chunks:
                request.context_chunk_size = size
            replace_contexts(batch, [request for request in batch.context_requests if request not in what.put_off])
        except Exception:
            self.take_back()
            raise

    def take_back(self) -> None:
        for request, size in self._chunks:
            request.context_chunk_size = size
        self._contexts.put_back()


def tell(what: Plan, limits: Limits) -> None:
    """Count and log each batch that was changed, or should have been."""
    counters.budget_trims.add(len(what.chunks))
    counters.budget_deferrals.add(len(what.put_off))
    counters.budget_trimmed_tokens.add(what.tokens_before - what.tokens)
    if what:
        flight.note(flight.BATCH_CUT, what.tokens_before, what.tokens, len(what.chunks), len(what.put_off))
        log.info(
            "batch of %d tokens exceeds max_num_tokens %d: chunks made smaller of requests %s, put off requests %s, "
            "%d tokens left",
            what.tokens_before,
            limits.max_num_tokens,
            [request.py_request_id for request, _ in what.chunks],
            [request.py_request_id for request in what.put_off],
            what.tokens,
        )
    if what.tokens > limits.max_num_tokens:
        counters.budget_overruns.add()
        log.error(
            "batch of %d tokens exceeds max_num_tokens %d and nothing more can be put off; usual cause: generation "
            "requests alone, one prompt that is larger than the limit without chunked prefill, or a connector's loads",
            what.tokens,
            limits.max_num_tokens,
        )


# The memo below keeps what the KV-cache manager has for a request that is put off; the request keeps its slot.
# These are given one with the first chunk each time that they see it.
GIVEN_AGAIN = ("SPEC_RESOURCE_MANAGER",)


class Preparation:
    """One batch on its way through `prepare_resources`."""

    def __init__(self, resource_manager: Any, batch: Any, limits: Limits) -> None:
        self.resource_manager = resource_manager
        self.main = main_v1_manager(resource_manager)
        self.batch = batch
        self.limits = limits
        self.order = list(batch.context_requests)  # the first to come keeps its place
        self.entering = {request.py_request_id for request in self.order if enters(self.main, request)}
        self.settled = False

    def may_exceed(self) -> bool:
        """Reuse only makes chunks smaller, so what fits now will fit."""
        return batch_tokens(self.batch, self.limits, is_arriving) > self.limits.max_num_tokens

    def plan(self) -> Plan:
        connector = getattr(self.main, "kv_connector_manager", None)
        promised = {} if connector is None else connector.scheduler_output_manager.external_loads

        def spared(request: Any) -> bool:
            return is_arriving(request) or (connector is not None and is_loading(connector, request))

        def stays(request: Any) -> bool:
            return bool(promised.get(request.request_id, 0) > 0)

        return plan(self.batch, self.limits, spared=spared, stays=stays, order=self.order)


class BudgetKeeper:
    """The replacements, and the limits of each executor by its resource manager."""

    def __init__(self, fuse: Fuse, votings: Votings, is_safe: Callable[[Any], bool]) -> None:
        """is_safe: whether the bound manager offers only what was computed for reuse, when a prompt is cut short."""
        self._fuse = fuse
        self._votings = votings
        self._is_safe = is_safe
        self._limits: WeakKeyDictionary[Any, Limits | None] = WeakKeyDictionary()
        self._learned_last: Callable[[], Any] = lambda: None  # the executor's that came here last, if it still lives
        self._kept: WeakKeyDictionary[Any, set[int]] = (
            WeakKeyDictionary()
        )  # sequences of requests that were put off, by manager
        self._of_thread = threading.local()

    def learning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `PyExecutor._schedule`: runs in the loop before every batch, when the executor is complete."""

        def _schedule(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._learned_last() is not executor.resource_manager:
                self._learn(executor)
            return original(executor, *args, **kwargs)

        return _schedule

    def fitting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `ResourceManager.prepare_resources`. Generations alone cannot be put off."""

        def prepare_resources(resource_manager: Any, scheduled_batch: Any) -> Any:
            has_contexts = scheduled_batch.context_requests
            current = self._begin(resource_manager, scheduled_batch) if has_contexts else None
            if current is None:
                return original(resource_manager, scheduled_batch)
            self._of_thread.current = current
            try:
                result = original(resource_manager, scheduled_batch)
            finally:
                self._of_thread.current = None
            self._settle(current)
            return result

        return prepare_resources

    def reporting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `KvCacheConnectorManager.build_scheduler_output`."""

        def build_scheduler_output(connector: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
            current: Preparation | None = getattr(self._of_thread, "current", None)
            if current is not None and current.batch is scheduled_batch:
                self._settle(current)
            return original(connector, scheduled_batch, *args, **kwargs)

        return build_scheduler_output

    def adding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `KVCacheManager._kv_connector_should_add_sequence`: a request that was put off has its sequence."""

        def _kv_connector_should_add_sequence(manager: Any, request: Any) -> Any:
            kept = self._kept.get(manager)
            if kept and request.py_request_id in kept:
                return False
            return original(manager, request)

        return _kv_connector_should_add_sequence

    def releasing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `KVCacheManager.free_resources`: a request that was paused comes back under its id, and is added."""

        def free_resources(manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            kept = self._kept.get(manager)
            if kept:
                kept.discard(request.py_request_id)
            return original(manager, request, *args, **kwargs)

        return free_resources

    def _learn(self, executor: Any) -> None:
        managers = executor.resource_manager
        self._learned_last = ref(managers)
        if managers in self._limits:
            return
        self._limits[managers] = None
        voting = self._votings.of(managers)
        try:
            limits = limits_of(executor, self._is_safe)
            if limits is not None and self._votings.may_change(managers, mapping_of(main_v1_manager(managers))):
                self._limits[managers] = limits
        except Exception as error:
            self._fuse.fault(error)
            # This rank knows no limits, so it will not take part in the steps of the others.
            voting.stand_down("the limits of this executor could not be read")

    def _begin(self, resource_manager: Any, batch: Any) -> Preparation | None:
        """Begin a batch. None if it needs no check, as in warm-up, before the loop has scheduled anything."""
        limits = self._limits.get(resource_manager)
        if limits is None or self._fuse.blown:
            return None
        voting = self._votings.of(resource_manager)
        voting.begin()
        try:
            current = Preparation(resource_manager, batch, limits)
            return current if current.may_exceed() else None
        except Exception as error:
            self._fuse.fault(error)
            voting.abstain()
            return None

    def _settle(self, current: Preparation) -> None:
        """Fit the batch, once; later calls find it done. The batch is changed before the ranks vote, so that faults
        come first."""
        if current.settled:
            return
        current.settled = True
        voting = self._votings.of(current.resource_manager)
        try:
            what = current.plan()
            made = Made(current.batch, what) if what else None
        except Exception as error:
            self._fuse.fault(error)
            voting.abstain()
            return
        self._fuse.in_a_row = 0
        won = made is None or voting.agree(what.decision())
        try:
            if made is not None and not won:
                made.take_back()
                return
            # A request that had its blocks before is on no list: it is past its first chunk, or its load is over.
            entered = [request for request in what.put_off if request.py_request_id in current.entering]
            self._keep(current, entered)
            _give_back(current, entered)
            tell(what, current.limits)
        except Exception as error:
            self._fuse.fault(error)

    def _keep(self, current: Preparation, entered: list[Any]) -> None:
        for manager in current.resource_manager.resource_managers.values():
            if hasattr(manager, "_kv_connector_should_add_sequence"):
                self._kept.setdefault(manager, set()).update(request.py_request_id for request in entered)


def _give_back(current: Preparation, entered: list[Any]) -> None:
    managers = managers_by_name(current.resource_manager)
    for manager in [managers[kind] for kind in GIVEN_AGAIN if kind in managers]:
        for request in entered:
            manager.free_resources(request)


def is_loading(connector: Any, request: Any) -> bool:
    """Whether the connector fetches the prompt asynchronously. If so, it takes the request out of the batch first."""
    return bool(request.request_id in connector.new_async_requests.loading)


def limits_of(executor: Any, is_safe: Callable[[Any], bool]) -> Limits | None:
    """The engine's own limit is the one that it asserts. None where batches must stay as they are; the log then says
    why.

    Where the cache is V2's, blocks are claimed before a batch is charged, so its charge holds.
    """
    manager = main_v1_manager(executor.resource_manager)
    if manager is None:
        return None
    engine = executor.model_engine
    max_num_tokens = getattr(engine, "max_num_tokens", None) or getattr(executor, "max_num_tokens", None)
    stages = getattr(getattr(executor, "dist", None), "pp_size", 1)
    why = ""
    if stages > 1:
        # One rank schedules and the others run what it sends; the loop has noted already who finishes its prompt.
        why = f"it has {stages} pipeline stages"
    elif max_num_tokens is None:
        why = "it does not show its max_num_tokens"
    elif not is_safe(manager.impl):
        why = "a prompt that is cut short would be offered for reuse whole, and computed-blocks is off"
    if why or max_num_tokens is None:
        log.warning("token-budget leaves the batches of this engine alone: %s", why)
        return None
    features = getattr(engine, "attn_runtime_features", None)
    return Limits(
        max_num_tokens=int(max_num_tokens),
        chunked_prefill=bool(getattr(features, "chunked_prefill", False)),
        tokens_per_block=int(manager.tokens_per_block),
        runtime_tokens=_runtime_tokens(executor, engine),
    )


def _runtime_tokens(executor: Any, engine: Any) -> Callable[[], int] | None:
    """Tokens of a generation with drafts, where the loop overlaps: the last step's sample, and its drafts, are taken
    from the device. The draft length may change from step to step. None without drafts, or without overlap."""
    if not getattr(engine, "enable_spec_decode", False) or getattr(executor, "disable_overlap_scheduler", False):
        return None
    widened = getattr(engine, "get_runtime_tokens_per_gen_step", None)
    if widened is None:
        return lambda: 1 + int(engine.runtime_draft_len)
    return lambda: int(widened(engine.runtime_draft_len))


class _Alone(Voting):
    """A vote of one: there are no other ranks to ask or to inform."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__(fuse, Tag.BUDGET, find=lambda: None)

    def may_change(self, mapping: Mapping | None) -> bool:  # noqa: ARG002  nothing is changed
        return True


class ObservedBudget(BudgetKeeper):
    """Batches as upstream made them, and how many of them exceed max_num_tokens once reuse is known.

    Each rank observes by itself: no rank changes anything, so ranks need not agree.
    """

    def __init__(self, fuse: Fuse) -> None:
        super().__init__(
            fuse, Votings(lambda: _Alone(fuse)), lambda _: True
        )  # no prompt is cut short, so none is offered too early

    def _settle(self, current: Preparation) -> None:
        if current.settled:
            return
        current.settled = True
        try:
            if current.plan():
                counters.observed.add(1, self._fuse.fix_id)
        except Exception as error:
            self._fuse.fault(error)
            self._votings.of(current.resource_manager).abstain()
        else:
            self._fuse.in_a_row = 0


# ---- when it is needed, and what it replaces ----

ID = "token-budget"
PREPARE = "ResourceManager.prepare_resources"
ENTERS = "KVCacheManager._kv_connector_should_add_sequence"
FREE = "KVCacheManager.free_resources"
SCHEDULE = "PyExecutor._schedule"
REPORT = "KvCacheConnectorManager.build_scheduler_output"

# Arguments of upstream's callers, the object itself included.
CALLED = (
    (PY_EXECUTOR, SCHEDULE, 1),
    (RESOURCE_MANAGER, ENTERS, 2),
    (RESOURCE_MANAGER, FREE, 2),
    (RESOURCE_MANAGER, FREE, 3),
)


def probe(up: Upstream) -> Answer:
    if not up.has(RESOURCE_MANAGER, "KVCacheManager"):
        return absent("there is no V1 KV-cache manager")
    if not up.has(LLM_REQUEST, "LlmRequest.estimated_reusable_tokens"):
        return absent("the scheduler charges whole prompts, so reuse can only make a batch smaller")
    if not takes(up, up.attribute(RESOURCE_MANAGER, PREPARE), SELF, scheduled_batch=SELF):
        return unknown(f"{PREPARE} does not take a batch")
    called = list(CALLED)
    if up.connector_module is not None:
        called.append((up.connector_module.__name__, REPORT, 3))
    for module, path, count in called:
        if not takes(up, up.attribute(module, path), *[SELF] * count):
            return unknown(f"{path} does not take the {count - 1} arguments that upstream's callers pass")
    if up.has(RESOURCE_MANAGER, "KVCacheManager.fit_token_budget"):
        # It has run when we look, so where it can do the work, nothing is left to do.
        return needed(
            "upstream makes chunks smaller (T#15187) but puts no request off: without chunked prefill it warns"
        )
    return needed("nothing compares the batch with max_num_tokens after reuse is known")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    keeper = BudgetKeeper(fuse.of(ID), Votings(lambda: Voting(fuse.of(ID), Tag.BUDGET)), partial(holds_for, up))
    made = [
        Replacement(Seam(PY_EXECUTOR, SCHEDULE), keeper.learning),
        Replacement(Seam(RESOURCE_MANAGER, PREPARE), keeper.fitting),
        Replacement(Seam(RESOURCE_MANAGER, ENTERS), keeper.adding),
        Replacement(Seam(RESOURCE_MANAGER, FREE), keeper.releasing),
    ]
    if up.connector_module is not None:
        made.append(Replacement(Seam(up.connector_module.__name__, REPORT), keeper.reporting))
    return made


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    keeper = ObservedBudget(fuse.of(ID))
    return [
        Replacement(Seam(PY_EXECUTOR, SCHEDULE), keeper.learning),
        Replacement(Seam(RESOURCE_MANAGER, PREPARE), keeper.fitting),
    ]


def self_test() -> None:
    def nothing(_: Any) -> bool:
        return False

    def fit(batch: Any, max_num_tokens: int, *, chunked_prefill: bool) -> int:
        what = plan(batch, Limits(max_num_tokens, chunked_prefill, tokens_per_block=8), spared=nothing, stays=nothing)
        Made(batch, what)
        return what.tokens

    h3.self_test_of_the_budget(fit)


FIX = Fix(
    id=ID,
    hazard="H3",
    title="After admission a batch holds at most max_num_tokens: chunks end earlier, or requests wait one iteration",
    upstream=("T#13318", "T#15187"),
    only_for="V1",
    triggers=(RESOURCE_MANAGER, PY_EXECUTOR, LLM_REQUEST, *CONNECTOR_PLACES),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(absent="A B", needed="B2 C D F"),
)
