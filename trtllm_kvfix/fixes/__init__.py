"""The fixes, in the order in which they are applied: where two replace the same attribute, the later is outside."""

from trtllm_kvfix.fixes.batched_admission.record import FIX as BATCHED_ADMISSION
from trtllm_kvfix.fixes.computed_blocks.record import FIX as COMPUTED_BLOCKS
from trtllm_kvfix.fixes.concurrent_pins.record import FIX as CONCURRENT_PINS
from trtllm_kvfix.fixes.graph_inputs.record import FIX as GRAPH_INPUTS
from trtllm_kvfix.fixes.input_copy_fence.record import FIX as INPUT_COPY_FENCE
from trtllm_kvfix.fixes.nixl_listener.record import FIX as NIXL_LISTENER
from trtllm_kvfix.fixes.staged_offsets_v1.record import FIX as STAGED_OFFSETS_V1
from trtllm_kvfix.fixes.staged_offsets_v2.record import FIX as STAGED_OFFSETS_V2
from trtllm_kvfix.fixes.token_budget.record import FIX as TOKEN_BUDGET
from trtllm_kvfix.overlay.fix import Fix

ALL: tuple[Fix, ...] = (
    STAGED_OFFSETS_V1,
    STAGED_OFFSETS_V2,
    COMPUTED_BLOCKS,
    BATCHED_ADMISSION,
    TOKEN_BUDGET,
    CONCURRENT_PINS,
    INPUT_COPY_FENCE,
    GRAPH_INPUTS,
    NIXL_LISTENER,
)
