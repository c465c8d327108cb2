"""Record of the fix that admits sequences in order of their evictions and measures their reuse (H3)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtllm_kvfix.fixes.batched_admission.mechanism import Admission, ObservedAdmission
from trtllm_kvfix.fixes.batches import MAIN
from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.signatures import SELF, takes
from trtllm_kvfix.hazards.h3_admission_reuse import simulated as h3
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.upstream import BINDINGS, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.overlay.vote import Voting, Votings
from trtllm_kvfix.ranks import Tag

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

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
    admission = Admission(fuse.of(ID), Votings(lambda: Voting(fuse.of(ID), Tag.ADMISSION)))
    return [Replacement(Seam(RESOURCE_MANAGER, PREPARE), admission.ordered)]


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return [Replacement(Seam(RESOURCE_MANAGER, PREPARE), ObservedAdmission(fuse.of(ID)).looking_on)]


def self_test() -> None:
    trial = fuse.Fuse(ID)
    admission = Admission(trial, Votings(lambda: Voting(trial, Tag.ADMISSION, find=lambda: None)))
    h3.self_test(MAIN, admission.ordered)


FIX = Fix(
    id=ID,
    hazard="H3",
    title="Requests that reuse claim their blocks before others allocate",
    upstream=("T#12892", "T#13029"),
    triggers=(BINDINGS, RESOURCE_MANAGER),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(absent="A", needed="B B2", fixed="C D F"),
)
