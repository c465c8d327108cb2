"""H10: block offsets that arrived torn stay so for many steps (KVCacheManagerV2 with the step-prologue trim).

Shows:     a launch is pending when another batch takes the shared copy index, so its table arrives torn (H2). Upstream
           has recorded it as it was meant, and skips the equal launches of the next steps, which would mend it.
Control:   the same steps, and the host waits for the stream before the other batch comes: every step is right.
Needs:     torch, a GPU, a TensorRT-LLM with the trim (newer than 1.4.0rc4); no model. Takes half a minute, most of it
           imports. With TRTLLM_STEP_PROLOGUE_TRIM=0 it runs without the trim, with =verify under upstream's own check.
Exit code: 1 the hazard shows, 0 it does not, 2 it cannot be looked at here, or the control is wrong.
"""

import sys
from importlib import import_module
from typing import Any

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(2))  # type: ignore[func-returns-value]  # not 1

import torch
from tensorrt_llm import bindings  # noqa: F401  fails here if it is not installed

from trtllm_kvfix.hazards.h2_block_offsets_v2.reproducer import kind
from trtllm_kvfix.hazards.small import PYEXECUTOR, ROWS_MAX, TOKENS_PER_BLOCK, manager

CYCLES = 1_000_000_000  # about half a second, for which the device is busy
FIRST, SECOND = [1, 2], [3, 4]
STEPS = 7  # in which the first batch comes to no new block


def read_by_step(cache: Any, *, busy: bool, wait: bool) -> list[Any]:
    """What attention of the first batch would read, step by step. The other batch comes once, behind the first step."""
    shape = (getattr(cache, "num_attention_op_pools", cache.num_pools), ROWS_MAX, 2, cache.max_blocks_per_seq)
    # Fresh ones, of which nothing is recorded yet.
    first, second = (torch.zeros(shape, dtype=torch.int32, device="cuda") for _ in range(2))
    seen = torch.zeros(shape, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()
    steps = []
    for step in range(STEPS):
        with torch.cuda.stream(cache._stream):
            if busy and step == 0:
                torch.cuda._sleep(CYCLES)
            cache.copy_batch_block_offsets(first, FIRST, 1, len(FIRST), len(FIRST))
            seen.copy_(first, non_blocking=True)
            if wait:
                cache._stream.synchronize()
            if step == 0:
                cache.copy_batch_block_offsets(second, SECOND, 1, len(SECOND), len(SECOND))
        cache._stream.synchronize()
        steps.append([pool[: len(FIRST)] for pool in seen.tolist()])
    return steps


def wrong(steps: list[Any], own: Any) -> int:
    return sum(step != own for step in steps)


try:
    import_module(f"{PYEXECUTOR}.step_prologue_trim")
except ImportError:
    print("this release has no step-prologue trim")
    sys.exit(2)
cache = manager(kind(), torch.cuda.Stream())  # its kernel is launched on a stream of its own
cache.add_dummy_requests(FIRST + SECOND, [2 * TOKENS_PER_BLOCK + 6] * 4)
own = read_by_step(cache, busy=False, wait=True)[0]  # first uses allocate, which would wait for the device
control = wrong(read_by_step(cache, busy=True, wait=True), own)
try:
    found = wrong(read_by_step(cache, busy=True, wait=False), own)
except RuntimeError as error:
    if type(error).__name__ != "StepPrologueTrimVerifyError":
        raise
    print(f"upstream's own check found it: {error}")
    sys.exit(1)
print(f"steps that read wrong pages, of {STEPS}: {control} with a wait and {found} without")
sys.exit(2 if control else int(found > 1))
