"""Host tables that a CUDA graph reads at replay are written behind the replay (H9)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtllm_kvfix.fixes.graph_inputs.mechanism import ID, ObservedReads, ReplayFence
from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.fixes.signatures import SELF, takes
from trtllm_kvfix.hazards.h9_graph_inputs import device as h9
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.upstream import GRAPH_RUNNER, LORA_PARAMS, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

TABLES = "CudaGraphLoraParams"
HAND_OUT = f"{TABLES}.get_moe_slot_inputs"
ASSIGN, POINT = f"{TABLES}.update_sorted_indices", f"{TABLES}.update_weight_pointers"
REPLAY, CAPTURE = "CUDAGraphRunner.replay", "CUDAGraphRunner.capture"

# Arguments that upstream passes behind `self`: so many by their places, and these by name.
CALLS: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    (LORA_PARAMS, HAND_OUT, 2, ()),
    (LORA_PARAMS, ASSIGN, 1, ("tokens_per_seq",)),
    (LORA_PARAMS, POINT, 2, ()),
    (GRAPH_RUNNER, REPLAY, 1, ("current_inputs",)),
    (GRAPH_RUNNER, CAPTURE, 2, ("initial_inputs", "enable_spec_decode", "postprocess_fn")),
)


def probe(up: Upstream) -> Answer:
    if not up.has(LORA_PARAMS, HAND_OUT):
        return absent("no CUDA graph reads host tables of LoRA")
    if not getattr(up.attribute(LORA_PARAMS, TABLES), "__weakrefoffset__", 0):
        return unknown(f"{TABLES} takes no weak references, so its tables cannot be followed")
    for module, path, places, names in CALLS:
        function = up.attribute(module, path)
        if function is None:
            return unknown(f"there is no {path}")
        if not takes(up, function, SELF, *[SELF] * places, **dict.fromkeys(names, SELF)):
            return unknown(f"{path} cannot be called as upstream is known to call it")
    return needed("host tables that a CUDA graph reads are rewritten while its replay may be pending")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _around(ReplayFence())


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _around(ReplayFence(ObservedReads))


def _around(fence: ReplayFence) -> Sequence[Replacement]:
    return [
        Replacement(Seam(LORA_PARAMS, HAND_OUT), fence.handing_out),
        Replacement(Seam(LORA_PARAMS, ASSIGN), fence.writing),
        Replacement(Seam(LORA_PARAMS, POINT), fence.writing),
        Replacement(Seam(GRAPH_RUNNER, REPLAY), fence.replaying),
        Replacement(Seam(GRAPH_RUNNER, CAPTURE), fence.capturing),
    ]


class _Tables:
    """The part of upstream's class that a graph receives; the rest does not matter here."""


def self_test() -> None:
    h9.self_test(ReplayFence)


FIX = Fix(
    id=ID,
    hazard="H9",
    title="Tables that a CUDA graph reads are not rewritten before its last replay has ended",
    upstream=("T#14881",),
    triggers=(LORA_PARAMS, GRAPH_RUNNER),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="D F", absent="A B B2 C"),
)
