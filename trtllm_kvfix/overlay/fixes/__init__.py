"""The fixes, in the order in which they are applied: where two replace the same attribute, the later is outside."""

from trtllm_kvfix.overlay.fix import Fix
from trtllm_kvfix.overlay.fixes import (
    batched_admission,
    concurrent_pins,
    input_copy_fence,
    nixl_listener,
    staged_offsets_v1,
    staged_offsets_v2,
    token_budget,
)

ALL: tuple[Fix, ...] = tuple(
    module.FIX
    for module in (
        staged_offsets_v1,
        staged_offsets_v2,
        batched_admission,
        token_budget,
        concurrent_pins,
        input_copy_fence,
        nixl_listener,
    )
)
