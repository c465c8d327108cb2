"""A batch that grew past max_num_tokens at admission is cut back to it (H3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.answers import absent, in_variants, needed, unknown
from trtllm_kvfix.fixes.token_budget.fitting import Limits, fit
from trtllm_kvfix.fixes.token_budget.mechanism import BudgetKeeper
from trtllm_kvfix.fixes.trial import require
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.upstream import CONNECTOR_PLACES, PY_EXECUTOR, RESOURCE_MANAGER, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

PREPARE = "ResourceManager.prepare_resources"
FREE = "KVCacheManager.free_resources"
SCHEDULE = "PyExecutor._schedule"
REPORT = "KvCacheConnectorManager.build_scheduler_output"
ALLOCATED = "KvCacheConnectorManager.update_state_after_alloc"


def probe(up: Upstream) -> Answer:
    if not up.has(RESOURCE_MANAGER, "KVCacheManager"):
        return absent("there is no V1 KV-cache manager")
    expected = {
        (RESOURCE_MANAGER, PREPARE): ("self", "scheduled_batch"),
        (PY_EXECUTOR, SCHEDULE): ("self",),
        (RESOURCE_MANAGER, FREE): ("self", "request", "pin_on_release"),
    }
    for (module, path), parameters in expected.items():
        found = up.parameters(up.attribute(module, path))
        if found != parameters:
            return unknown(f"{path} takes {found or 'nothing that can be read'}, expected {parameters}")
    return _probe_connector(up)


def _probe_connector(up: Upstream) -> Answer:
    if up.connector_module is not None:
        for path in (REPORT, ALLOCATED):
            if not up.has(up.connector_module, path):
                return unknown(f"{up.connector_module.__name__} has no {path}")
    if up.has(RESOURCE_MANAGER, "KVCacheManager.fit_token_budget"):
        # It has run when we look, so where it can do the work, nothing is left to do.
        return needed(
            "upstream makes chunks smaller (T#15187) but puts no request off: without chunked prefill it warns"
        )
    return needed("nothing compares the batch with max_num_tokens after reuse is known")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    keeper = BudgetKeeper()
    made = [
        Replacement(Seam(PY_EXECUTOR, SCHEDULE), keeper.learning),
        Replacement(Seam(RESOURCE_MANAGER, PREPARE), keeper.fitting),
        Replacement(Seam(RESOURCE_MANAGER, FREE), keeper.releasing),
    ]
    connector = up.connector_module
    if connector is not None:
        told = connector.KvCacheConnectorManager.update_state_after_alloc
        made += [
            Replacement(Seam(connector.__name__, ALLOCATED), keeper.holding_back),
            Replacement(Seam(connector.__name__, REPORT), partial(keeper.reporting, told)),
        ]
    return made


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
    def spared(_: Any) -> bool:
        return False

    for chunked, left, chunk in ((True, 2, 8), (False, 1, 20)):
        first, last = _Request(20, 20), _Request(20, 20)
        batch = _Batch([first, last], [_Request(0, 0)])
        fitted = fit(batch, Limits(max_num_tokens=31, chunked_prefill=chunked, tokens_per_block=8), spared=spared)
        require(fitted.tokens <= 31, f"{fitted.tokens} tokens are left of a budget of 31")
        require(len(batch.context_requests) == left, f"{len(batch.context_requests)} requests stayed, expected {left}")
        require(last.context_chunk_size == chunk, f"the last chunk has {last.context_chunk_size} tokens, not {chunk}")


FIX = Fix(
    id="token-budget",
    hazard="H3",
    title="After admission a batch holds at most max_num_tokens: chunks end earlier, or requests wait one iteration",
    upstream=("T#13318", "T#15187"),
    triggers=(RESOURCE_MANAGER, PY_EXECUTOR, *CONNECTOR_PLACES),
    probe=probe,
    replacements=replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2 C D F"),
)
