"""Blocks are offered for reuse when they have been computed, and not before (H8)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.computed_blocks.mechanism import ComputedBlocks
from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.fixes.signatures import SELF, takes
from trtllm_kvfix.hazards.h8_uncomputed_blocks import simulated as h8
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam, State
from trtllm_kvfix.overlay.upstream import (
    BINDINGS,
    BOUND_MANAGERS,
    LLM_REQUEST,
    RESOURCE_MANAGER,
    Upstream,
)

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

ID = "computed-blocks"
# How many positional arguments upstream's callers pass.
CALLED = {"store_context_blocks": 1, "remove_sequence": 3, "store_blocks_for_reuse": 3, "unpin_blocks_by_id": 1}
READ = ("context_remaining_length", "context_current_position", "is_dummy_request", "is_generation_complete_state")
# Where blocks are stored by position, a connector's load is all that a position may be ahead of.
CALLED_BY_POSITION = {"remove_sequence": 3}
READ_BY_POSITION = ("context_remaining_length", "is_first_context_chunk", "is_dummy_request")


def probe(up: Upstream) -> Answer:
    if up.bindings is None or not up.has(RESOURCE_MANAGER, "KVCacheManager.update_resources"):
        return absent("there is no V1 KV-cache manager over a bound one")
    if stores_by_position(up):
        strange = _strange(up, CALLED_BY_POSITION, READ_BY_POSITION)
        return unknown(strange) if strange else needed("a load that a connector has not finished counts as computed")
    if not up.binds("add_sequence"):
        return unknown("the bound manager has neither add_sequence nor add_sequence_batch")
    strange = _strange(up, CALLED, READ)
    if strange:
        return unknown(strange)
    return needed("prompts are offered for reuse before they are computed; no name shows whether T#12673 is in")


def stores_by_position(up: Upstream) -> bool:
    """Sequences are added in batches (T#13029), which came after blocks were stored by position (T#12673)."""
    return up.binds("add_sequence_batch")


def _strange(up: Upstream, called: Mapping[str, int], read: Sequence[str]) -> str:
    """Describe what differs from the code that the fix expects. Empty if nothing does."""
    for name, count in called.items():
        owners = [owner for owner, method in _methods(up) if method == name]
        if not owners:
            return f"nothing in {BINDINGS} has its own {name}"
        if not takes(up, up.attribute(BINDINGS, f"{owners[0]}.{name}"), SELF, *[SELF] * count):
            return f"{name} does not take the {count} arguments that upstream's callers pass"
    missing = [name for name in read if not up.has(LLM_REQUEST, f"LlmRequest.{name}")]
    return f"requests have no {', '.join(missing)}" if missing else ""


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    blocks = ComputedBlocks(fuse.of(ID))
    if stores_by_position(up):
        return [
            Replacement(Seam(BINDINGS, f"{owner}.{name}"), blocks.releasing_loads)
            for owner, name in _methods(up)
            if name in CALLED_BY_POSITION
        ]
    made: dict[str, Callable[[Any], Any]] = {
        "store_context_blocks": blocks.storing,
        "remove_sequence": blocks.releasing,
        "store_blocks_for_reuse": blocks.saving,
        "unpin_blocks_by_id": blocks.unpinning,
    }
    return [Replacement(Seam(BINDINGS, f"{owner}.{name}"), made[name]) for owner, name in _methods(up)]


def holds_for(up: Upstream, impl: Any) -> bool:
    """Whether a request of this manager may be cut short, so that only computed blocks are offered for reuse."""
    if stores_by_position(up) or probe(up).state is not State.NEEDED:
        return True
    method = getattr(type(impl), "remove_sequence", None)
    while method is not None and getattr(method, "__kvfix_fix__", None) != ID:
        method = getattr(method, "__wrapped__", None)
    return method is not None


def _methods(up: Upstream) -> Iterator[tuple[str, str]]:
    """(class, method) of those that the bound classes themselves hold."""
    for owner in BOUND_MANAGERS:
        held = vars(up.attribute(BINDINGS, owner) or object)
        for name in CALLED:
            if name in held:
                yield owner, name


def self_test() -> None:
    blocks = ComputedBlocks(fuse.Fuse(ID))
    h8.self_test(blocks.storing, blocks.releasing)


FIX = Fix(
    id=ID,
    hazard="H8",
    title="Blocks are offered for reuse when they have been computed, and not before",
    upstream=("T#12673",),
    triggers=(BINDINGS, RESOURCE_MANAGER, LLM_REQUEST),
    probe=probe,
    replacements=replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2 C D F"),
)
