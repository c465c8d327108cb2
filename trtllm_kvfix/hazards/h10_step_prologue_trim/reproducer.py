"""H10: block offsets that arrived torn stay so for many steps (KVCacheManagerV2 with the step-prologue trim).

Shows:     a launch is pending when another batch takes the shared copy index, so its table arrives torn (H2). Upstream
           has recorded it as it was meant, and skips the equal launches of the next steps, which would mend it.
Control:   the same steps, and the host waits for the stream before the other batch comes: every step is right.
Needs:     torch, a GPU, a TensorRT-LLM with the trim (newer than 1.4.0rc4); no model. Takes half a minute, most of it
           imports. With TRTLLM_STEP_PROLOGUE_TRIM=0 it runs without the trim, with =verify under upstream's own check.
"""

import sys
from importlib import import_module
from typing import Any

import torch
from tensorrt_llm import bindings  # noqa: F401  fails here if it is not installed

from trtllm_kvfix.hazards.h1_block_offsets_v1.reproducer import read_by_step
from trtllm_kvfix.hazards.h2_block_offsets_v2.reproducer import kind
from trtllm_kvfix.hazards.small import FIRST, LENGTH, PYEXECUTOR, SECOND, manager

STEPS = 7  # in which the first batch comes to no new block


def read(*, busy: bool, wait: bool) -> list[Any]:
    # The manager launches its kernel on a stream of its own.
    return read_by_step(cache, cache._stream, busy=busy, wait=wait, steps=STEPS)


def wrong(steps: list[Any], own: Any) -> int:
    return sum(step != own for step in steps)


try:
    import_module(f"{PYEXECUTOR}.step_prologue_trim")
except ImportError:
    print("this release has no step-prologue trim")
    sys.exit(2)
cache = manager(kind(), torch.cuda.Stream())
cache.add_dummy_requests(FIRST + SECOND, [LENGTH] * 4)
own = read(busy=False, wait=True)[0]  # first uses allocate, which would wait for the device
control = wrong(read(busy=True, wait=True), own)
try:
    found = wrong(read(busy=True, wait=False), own)
except RuntimeError as error:
    if type(error).__name__ != "StepPrologueTrimVerifyError":
        raise
    print(f"upstream's own check found it: {error}")
    sys.exit(1)
print(f"steps that read wrong pages, of {STEPS}: {control} with a wait and {found} without")
sys.exit(2 if control else int(found > 1))
