"""The fixes, in the order in which they are applied: where two replace the same attribute, the later is outside."""

from trtllm_kvfix.overlay.fix import Fix
from trtllm_kvfix.overlay.fixes.batched_admission import FIX as BATCHED_ADMISSION
from trtllm_kvfix.overlay.fixes.concurrent_pins import FIX as CONCURRENT_PINS
from trtllm_kvfix.overlay.fixes.input_copy_fence import FIX as INPUT_COPY_FENCE
from trtllm_kvfix.overlay.fixes.nixl_listener import FIX as NIXL_LISTENER
from trtllm_kvfix.overlay.fixes.staged_offsets_v1 import FIX as STAGED_OFFSETS_V1
from trtllm_kvfix.overlay.fixes.staged_offsets_v2 import FIX as STAGED_OFFSETS_V2
from trtllm_kvfix.overlay.fixes.token_budget import FIX as TOKEN_BUDGET

ALL: tuple[Fix, ...] = (
    STAGED_OFFSETS_V1,
    STAGED_OFFSETS_V2,
    BATCHED_ADMISSION,
    TOKEN_BUDGET,
    CONCURRENT_PINS,
    INPUT_COPY_FENCE,
    NIXL_LISTENER,
)
