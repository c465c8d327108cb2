"""V1 block offsets are staged: by the manager where it owns the table, by attention metadata where that does (H1)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.signatures import SELF, takes
from trtllm_kvfix.fixes.staged_offsets_v1.mechanism import ID, StagedOffsetsV1
from trtllm_kvfix.fixes.staged_offsets_v1.observed import ObservedOffsetsV1
from trtllm_kvfix.hazards.h1_block_offsets_v1 import device as h1
from trtllm_kvfix.overlay.fix import Answer, Fix, HostBuffers, Replacement, Seam
from trtllm_kvfix.overlay.upstream import ATTENTION_PLACES, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.staging.read_back import OBSERVED_EVERY, ReadBack

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

Make = Callable[[Any], Any]

MANAGER_COPY = "KVCacheManager.copy_batch_block_offsets"
METADATA_PREPARE = "TrtllmAttentionMetadata.prepare"
KNOWN_PARAMETERS = ("self", "dst_tensor", "request_ids", "beam_width", "num_context", "num_seqs")


def probe(up: Upstream) -> Answer:
    if not up.has(RESOURCE_MANAGER, "KVCacheManager"):
        return absent("there is no V1 KV-cache manager")
    if up.has(RESOURCE_MANAGER, "KVCacheManager._stage_block_offsets_for_copy"):
        return fixed("the manager ships from a fresh pinned copy (T#15546)")
    copy = up.attribute(RESOURCE_MANAGER, MANAGER_COPY)
    if copy is None:
        return _probe_metadata(up)
    parameters = up.parameters(copy)
    if parameters[: len(KNOWN_PARAMETERS)] != KNOWN_PARAMETERS:
        return unknown(f"copy_batch_block_offsets takes {parameters}, expected {KNOWN_PARAMETERS}")
    if not takes(up, copy, *[SELF] * 6) or not takes(up, copy, *[SELF] * 4, num_context=SELF, num_seqs=SELF):
        return unknown("copy_batch_block_offsets cannot be called as attention metadata and AutoDeploy call it")
    return _judged(up.source(copy), "the manager")


def _probe_metadata(up: Upstream) -> Answer:
    """Before the manager had the method, attention metadata filled and shipped the table."""
    prepare = up.attribute(up.attention_module, METADATA_PREPARE)
    if prepare is None:
        return unknown("neither the manager nor attention metadata is known to ship block offsets")
    if not takes(up, prepare, SELF):
        return unknown(f"{METADATA_PREPARE} cannot be called as the engine calls it, with no argument")
    return _judged(up.source(prepare), "attention metadata")


def _judged(source: str | None, who: str) -> Answer:
    if source is None:
        return unknown(f"the source of {who} that ships block offsets cannot be read")
    if "host_kv_cache_block_offsets" not in source or ".copy_(" not in source or "non_blocking=True" not in source:
        return unknown(f"{who} does not ship block offsets in a way that is known")
    return needed(f"{who} ships from its live table, which the next iteration refills")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    staged = StagedOffsetsV1(
        mode=settings.staging_mode, slots=settings.staging_slots, read_back_every=settings.read_back_every
    )
    return _in_place(up, staged.copy_batch_block_offsets, staged.prepare)


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    observed = ObservedOffsetsV1(ReadBack(ID, settings.read_back_every or OBSERVED_EVERY))
    return _in_place(up, observed.copy_batch_block_offsets, observed.prepare)


def _in_place(up: Upstream, copy: Make, prepare: Make) -> Sequence[Replacement]:
    """Replaces the manager's method where it has one, else attention metadata's."""
    if up.has(RESOURCE_MANAGER, MANAGER_COPY):
        return [Replacement(Seam(RESOURCE_MANAGER, MANAGER_COPY), copy)]
    attention = up.attention_module
    if attention is None:
        raise LookupError("no attention module is imported")
    return [Replacement(Seam(attention.__name__, METADATA_PREPARE), prepare)]


def self_test() -> None:
    h1.self_test(StagedOffsetsV1().copy_batch_block_offsets)


FIX = Fix(
    id=ID,
    hazard="H1",
    title="Block offsets of the V1 manager are shipped from a snapshot, not from the live table",
    upstream=("T#15546",),
    triggers=(RESOURCE_MANAGER, *ATTENTION_PLACES),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2 C", fixed="D F"),
    keeps_safe=(HostBuffers(r"^host_kv_cache_block_offsets$", r"resource_manager|trtllm"),),
)
