"""Scheduling waits until the device has taken the last step's inputs: the net under every pinned input buffer (H7)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtllm_kvfix.fixes.input_copy_fence.mechanism import InputFence, ObservedFence
from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.signatures import SELF, takes
from trtllm_kvfix.hazards.h7_other_pinned_buffers import device as h7
from trtllm_kvfix.overlay.fix import Answer, Fix, HostBuffers, Replacement, Seam
from trtllm_kvfix.overlay.upstream import MODEL_ENGINE, PY_EXECUTOR, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

ENGINE = "PyTorchModelEngine"
PREPARE_INPUTS = f"{ENGINE}._prepare_inputs"
SCHEDULE = "PyExecutor._prepare_and_schedule_batch"
# Later in the same iteration, when the next inputs have been enqueued: what they write is read by then, too. Upstream's
# own fence waits at the same three steps. What takes the place of all of these passes on whatever it is called with.
ALSO_WRITING = ("PyExecutor._update_request_states", "PyExecutor._process_previous_batch")
# How many arguments upstream's own callers pass, with self.
PASSED = {PREPARE_INPUTS: 4, SCHEDULE: 1, ALSO_WRITING[0]: 2, ALSO_WRITING[1]: 1}


def probe(up: Upstream) -> Answer:
    if not up.has(MODEL_ENGINE, ENGINE) or not up.has(PY_EXECUTOR, "PyExecutor"):
        return absent("there is no executor of the PyTorch backend")
    marks = up.has(MODEL_ENGINE, f"{ENGINE}.wait_for_input_copy")
    awaits = up.has(PY_EXECUTOR, "PyExecutor._wait_for_model_engine_input_copy")
    if marks and awaits:
        return fixed("the executor waits for the input copies itself (T#14128)")
    if marks != awaits:
        return unknown("one half of upstream's own wait for the input copies is there, the other is not")
    for path, passed in PASSED.items():
        function = up.attribute(MODEL_ENGINE if path == PREPARE_INPUTS else PY_EXECUTOR, path)
        if function is None and path not in ALSO_WRITING:
            return unknown(f"there is no {path}")
        if function is not None and not takes(up, function, *[SELF] * passed):
            return unknown(f"{path} cannot be called as upstream is known to call it")
    return needed("the next scheduling step may write host buffers that the device has not read yet")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _around(up, InputFence())


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _around(up, ObservedFence())


def _around(up: Upstream, fence: InputFence) -> Sequence[Replacement]:
    steps = [SCHEDULE, *(path for path in ALSO_WRITING if up.has(PY_EXECUTOR, path))]
    return [
        Replacement(Seam(MODEL_ENGINE, PREPARE_INPUTS), fence.recording),
        *(Replacement(Seam(PY_EXECUTOR, path), fence.waiting) for path in steps),
    ]


def self_test() -> None:
    h7.self_test(InputFence)


FIX = Fix(
    id="input-copy-fence",
    hazard="H7",
    title="The next scheduling step waits until the device has read the last step's inputs",
    upstream=("T#14128",),
    triggers=(MODEL_ENGINE, PY_EXECUTOR),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2 C", fixed="D F"),
    keeps_safe=(
        HostBuffers(r"", r"^(?!_torch/auto_deploy/)"),  # the engine there is none that a fence knows
    ),
)
