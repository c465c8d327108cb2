"""The fixes, each with a room here, in the order in which they are applied (fix_ids.py).

The fix of a room is its `fix`: the code that runs in the place of upstream's, and the record that the registry reads.
It meets upstream in this order:

1. its probe looks at upstream's features, asks `overlay.signatures` whether calls fit, and answers in `probe_answers`;
2. its replacements take their seams: of the KV-cache managers and attention (`staged_offsets_v1`, `staged_offsets_v2`,
   `connector_prefixes`), of the bound manager (`computed_blocks`, `concurrent_pins`), of the executor's step
   (`batched_admission`, `token_budget`, `input_copy_fence`), of CUDA graphs (`graph_inputs`), of the transfer agent
   (`nixl_listener`);
3. in a step, its code reads the batch by `batches`, asks how much of a prompt is cached by `reuse`, and waits for
   the device by `waits`, also when its own code has failed;
4. its self-test runs it on simulated tensors (`hazards`), without upstream and without a GPU.
"""

from importlib import import_module

from trtllm_kvfix.fix_ids import FIX_IDS, room_of
from trtllm_kvfix.overlay.fix import Fix


def _record(fix_id: str) -> Fix:
    fix: Fix = import_module(f"{__name__}.{room_of(fix_id)}.fix").FIX
    return fix


ALL: tuple[Fix, ...] = tuple(_record(fix_id) for fix_id in FIX_IDS)


def of(fix_id: str) -> Fix:
    return next(fix for fix in ALL if fix.id == fix_id)
