"""Where sequences are added one by one, those that evict least go first, and what was reused is measured (H3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.batched_admission.mechanism import ordered_admission
from trtllm_kvfix.fixes.trial import require
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.upstream import BINDINGS, RESOURCE_MANAGER, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

PREPARE = "KVCacheManager.prepare_resources"
BOUND = ("KVCacheManager", "BaseKVCacheManager")


def probe(up: Upstream) -> Answer:
    prepare = up.attribute(RESOURCE_MANAGER, PREPARE)
    if prepare is None:
        return absent("there is no V1 KV-cache manager that prepares a batch")
    if any(up.has(BINDINGS, f"{name}.add_sequence_batch") for name in BOUND):
        return fixed("the bound manager claims for a whole batch before it allocates (T#13029)")
    if not any(up.has(BINDINGS, f"{name}.add_sequence") for name in BOUND):
        return unknown("the bound manager has neither add_sequence nor add_sequence_batch")
    if up.parameters(prepare) != ("self", "scheduled_batch"):
        return unknown(f"{PREPARE} takes {up.parameters(prepare)}, expected self and scheduled_batch")
    return needed("sequences are added in the scheduler's order, each allocation may evict a later request's reuse")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return [Replacement(Seam(RESOURCE_MANAGER, PREPARE), ordered_admission)]


@dataclass(eq=False)
class _Request:
    py_request_id: int
    prompt_len: int
    estimated_reusable_tokens: int
    is_first_context_chunk: bool = True
    prepopulated_prompt_len: int = 0


@dataclass
class _Batch:
    context_requests: list[_Request] = field(default_factory=list)


def self_test() -> None:
    admitted: list[int] = []

    class Manager:
        is_draft = False
        enable_block_reuse = True
        tokens_per_block = 4
        impl = object()

    def as_upstream(manager: Any, scheduled_batch: Any) -> None:  # noqa: ARG001
        admitted.extend(request.py_request_id for request in scheduled_batch.context_requests)

    large, reusing = _Request(1, 64, 0), _Request(2, 64, 60)
    batch = _Batch([large, reusing])
    ordered_admission(as_upstream)(Manager(), batch)
    require(admitted == [2, 1], f"requests were admitted in the order {admitted}, expected the one that reuses first")
    require(batch.context_requests == [large, reusing], "the batch did not get its order back")


FIX = Fix(
    id="batched-admission",
    hazard="H3",
    title="Requests that reuse claim their blocks before others allocate",
    upstream=("T#12892", "T#13029"),
    triggers=(RESOURCE_MANAGER,),
    probe=probe,
    replacements=replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2", fixed="C D F"),
)
