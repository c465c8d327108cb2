"""Sequences are admitted one by one, in the order that loses least, and their reuse is measured (H3).

Where the bound manager cannot add a batch, every allocation may evict blocks that a later request of the batch counts
on. The requests that allocate least go first, so matches are claimed before the large allocations come. The order is
set before the first of the managers prepares the batch: a draft's manager comes before the target's and must admit in
the same order, or its cache keeps other prompts than the target's does.

This is advice. If it fails, or the ranks that share the batch do not all give the same advice, upstream's order stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.batches import MAIN, Contexts, enters, line_up, main_v1_manager, replace_contexts
from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.reuse import cached_tokens
from trtllm_kvfix.hazards.h3_admission_reuse import simulated as h3
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import BINDINGS, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.overlay.vote import Voting, Votings, mapping_of
from trtllm_kvfix.ranks import Tag

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


@dataclass(frozen=True)
class Advice:
    scheduled: list[Any]
    expected: dict[int, int]  # by entering request: tokens that others could evict before it finds them
    order: list[Any]

    @property
    def changes_order(self) -> bool:
        return self.order != self.scheduled

    def decision(self) -> object:
        """The same on every rank that advises alike."""
        return [request.py_request_id for request in self.order]


class BatchedAdmission:
    def __init__(self, fuse: Fuse, votings: Votings) -> None:
        self._fuse = fuse
        self._votings = votings

    def ordered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `ResourceManager.prepare_resources` of versions that call `add_sequence` in the order of the batch."""

        def prepare_resources(resource_manager: Any, scheduled_batch: Any) -> Any:
            advice = self._line_up(resource_manager, scheduled_batch)
            try:
                return original(resource_manager, scheduled_batch)
            finally:
                if advice is not None:
                    self._look_back(advice, scheduled_batch)

        return prepare_resources

    def _line_up(self, resource_manager: Any, batch: Any) -> Advice | None:
        """Set the order of the batch. None: upstream's order stays, and nothing is measured."""
        if self._fuse.blown or not batch.context_requests:
            return None
        voting = self._votings.of(resource_manager)
        voting.begin()
        try:
            before = Contexts(batch)
            advice = self._advice(resource_manager, batch)
            if advice is not None and advice.changes_order:
                try:
                    line_up(batch, advice.order)
                except Exception:
                    before.put_back()
                    raise
        except Exception as error:
            self._fuse.fault(error)
            voting.abstain()
            return None
        if advice is None or len(advice.expected) > 1:  # for one alone nothing was asked that could fail
            self._fuse.in_a_row = 0
        if advice is None or not advice.changes_order or voting.agree(advice.decision()):
            return advice
        before.put_back()
        return None

    def _advice(self, resource_manager: Any, batch: Any) -> Advice | None:
        manager = main_v1_manager(resource_manager)
        if manager is None or not self._votings.may_change(resource_manager, mapping_of(manager)):
            return None
        return advice_for(manager, batch)

    def _look_back(self, advice: Advice, batch: Any) -> None:
        """Give the batch the scheduler's order back, by which rows are assigned; then count what was found."""
        try:
            if advice.changes_order:
                _restore_order(batch, advice.scheduled)
                flight.note(flight.REORDERED, len(advice.scheduled), sum(advice.expected.values()))
            measure(batch.context_requests, advice.expected)
        except Exception as error:
            self._fuse.fault(error)
            Contexts(batch).put_back_in_order(advice.scheduled)


def advice_for(manager: Any, batch: Any) -> Advice | None:
    """None where this build or manager cannot report what a prompt would reuse."""
    scheduled = list(batch.context_requests)
    entering = [request for request in scheduled if enters(manager, request)]
    expected: dict[int, int] = {}
    if len(entering) == 1:  # no other request evicts what it finds, and asking would copy its tokens twice
        return Advice(scheduled, {entering[0].py_request_id: 0}, scheduled)
    for request in entering:
        cached = cached_tokens(manager.impl, request)
        if cached is None:
            return None
        # The last token is always computed: something has to be sampled.
        expected[request.py_request_id] = min(cached, request.prompt_len - 1)
    return Advice(scheduled, expected, _least_first(scheduled, expected))


def measure(requests: Any, expected: dict[int, int]) -> None:
    """Count, for the requests that entered, the tokens that were found, and those that were expected and had gone."""
    for request in requests:
        promised = expected.get(request.py_request_id)
        if promised is not None:
            reused = int(request.prepopulated_prompt_len)
            counters.reused_tokens.add(reused)
            counters.reuse_lost_tokens.add(max(0, promised - reused))


def _least_first(scheduled: list[Any], expected: dict[int, int]) -> list[Any]:
    """The requests by what they allocate. Equals keep the scheduler's order, and requests that do not enter allocate
    nothing."""

    def tokens_to_allocate(request: Any) -> int:
        reuse = expected.get(request.py_request_id)
        return 0 if reuse is None else int(request.prompt_len) - reuse

    return sorted(scheduled, key=tokens_to_allocate)


def _restore_order(batch: Any, scheduled: list[Any]) -> None:
    """Restore the order of the requests that are still in the batch."""
    left = {request.py_request_id for request in batch.context_requests}
    replace_contexts(batch, [request for request in scheduled if request.py_request_id in left])


class ObservedAdmission:
    """Upstream's order, and how much less it reuses than was there before the batch was admitted.

    Each rank observes by itself: no rank changes anything, so ranks need not agree.
    """

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse

    def looking_on(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `ResourceManager.prepare_resources`."""

        def prepare_resources(resource_manager: Any, scheduled_batch: Any) -> Any:
            advice = self._advice(resource_manager, scheduled_batch)
            try:
                return original(resource_manager, scheduled_batch)
            finally:
                if advice is not None:
                    self._count(advice)

        return prepare_resources

    def _advice(self, resource_manager: Any, batch: Any) -> Advice | None:
        if self._fuse.blown or not batch.context_requests:
            return None
        try:
            manager = main_v1_manager(resource_manager)
            return None if manager is None else advice_for(manager, batch)
        except Exception as error:
            self._fuse.fault(error)
            return None

    def _count(self, advice: Advice) -> None:
        try:
            if advice.changes_order:
                counters.observed.add(1, self._fuse.fix_id)
            measure(advice.scheduled, advice.expected)
        except Exception as error:
            self._fuse.fault(error)
        else:
            self._fuse.in_a_row = 0


# ---- when it is needed, and what it replaces ----

ID = "batched-admission"
PREPARE = "ResourceManager.prepare_resources"
ENTERS = "KVCacheManager._kv_connector_should_add_sequence"
TELLING = ("count_reusable_blocks", "find_new_context_block")


def probe(up: Upstream) -> Answer:
    if not up.has(RESOURCE_MANAGER, "KVCacheManager.prepare_resources"):
        return absent("there is no V1 KV-cache manager that prepares a batch")
    if up.binds("add_sequence_batch"):
        return fixed("the bound manager claims for a whole batch before it allocates (T#13029)")
    if not up.binds("add_sequence"):
        return unknown("the bound manager has neither add_sequence nor add_sequence_batch")
    if not any(up.binds(name) for name in TELLING):
        return absent(
            "this build cannot report what a prompt would reuse, so no order is known to be better than upstream's"
        )
    strange = _strange(up)
    if strange:
        return unknown(strange)
    return needed("sequences are added in the scheduler's order, and each may evict what a later one would reuse")


def _strange(up: Upstream) -> str:
    """Describe what differs from the code that the fix expects. Empty if nothing does."""
    if not takes(up, up.attribute(RESOURCE_MANAGER, PREPARE), SELF, scheduled_batch=SELF):
        return f"{PREPARE} does not take a batch"
    if not takes(up, up.attribute(RESOURCE_MANAGER, ENTERS), SELF, SELF):
        return f"{ENTERS} does not take a request"
    count = up.attribute(BINDINGS, "KVCacheManager.count_reusable_blocks")
    if count is not None and not takes(up, count, SELF, SELF, SELF, SELF):
        return "count_reusable_blocks does not take tokens, a request and a switch"
    find = up.attribute(BINDINGS, "KVCacheManager.find_new_context_block")
    if find is not None and not takes(up, find, SELF, SELF, SELF):
        return "find_new_context_block does not take tokens and a request"
    return ""


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    admission = BatchedAdmission(fuse.of(ID), Votings(lambda: Voting(fuse.of(ID), Tag.ADMISSION)))
    return [Replacement(Seam(RESOURCE_MANAGER, PREPARE), admission.ordered)]


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return [Replacement(Seam(RESOURCE_MANAGER, PREPARE), ObservedAdmission(fuse.of(ID)).looking_on)]


def self_test() -> None:
    trial = fuse.Fuse(ID)
    admission = BatchedAdmission(trial, Votings(lambda: Voting(trial, Tag.ADMISSION, find=lambda: None)))
    h3.self_test(MAIN, admission.ordered)


FIX = Fix(
    id=ID,
    hazard="H3",
    title="Requests that reuse claim their blocks before others allocate",
    upstream=("T#12892", "T#13029"),
    only_for="V1",
    triggers=(BINDINGS, RESOURCE_MANAGER),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(absent="A", needed="B B2", fixed="C D F"),
)
