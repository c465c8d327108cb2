"""A batch that grew past max_num_tokens at admission is cut back to it (H3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.computed_blocks.record import holds_for
from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.fixes.signatures import SELF, takes
from trtllm_kvfix.fixes.token_budget.fitting import Limits, Made, plan
from trtllm_kvfix.fixes.token_budget.mechanism import BudgetKeeper, ObservedBudget
from trtllm_kvfix.hazards.simulated import require
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.upstream import CONNECTOR_PLACES, LLM_REQUEST, PY_EXECUTOR, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.overlay.vote import Voting, Votings
from trtllm_kvfix.ranks import Tag

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

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


@dataclass(frozen=True)
class _Sampling:
    beam_width: int = 1


@dataclass(eq=False)
class _Request:
    context_remaining_length: int
    context_chunk_size: int
    context_current_position: int = 0
    py_draft_tokens: tuple[int, ...] = ()
    sampling_config: _Sampling = _Sampling()


@dataclass
class _Batch:
    context_requests: list[_Request] = field(default_factory=list)
    generation_requests: list[_Request] = field(default_factory=list)


def self_test() -> None:
    def never(_: Any) -> bool:
        return False

    for chunked, left, chunk in ((True, 2, 8), (False, 1, 20)):
        first, last = _Request(20, 20), _Request(20, 20)
        batch = _Batch([first, last], [_Request(0, 0)])
        limits = Limits(max_num_tokens=31, chunked_prefill=chunked, tokens_per_block=8)
        what = plan(batch, limits, spared=never, stays=never)
        Made(batch, what)
        require(what.tokens <= 31, f"{what.tokens} tokens are left of a budget of 31")
        require(len(batch.context_requests) == left, f"{len(batch.context_requests)} requests stayed, expected {left}")
        require(last.context_chunk_size == chunk, f"the last chunk has {last.context_chunk_size} tokens, not {chunk}")


FIX = Fix(
    id=ID,
    hazard="H3",
    title="After admission a batch holds at most max_num_tokens: chunks end earlier, or requests wait one iteration",
    upstream=("T#13318", "T#15187"),
    triggers=(RESOURCE_MANAGER, PY_EXECUTOR, LLM_REQUEST, *CONNECTOR_PLACES),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(absent="A B", needed="B2 C D F"),
)
