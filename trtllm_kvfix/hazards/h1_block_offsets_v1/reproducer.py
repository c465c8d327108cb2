"""H1: block offsets of one batch arrive as those of the next (KVCacheManager).

Shows:     copy_batch_block_offsets fills one pinned table and enqueues copies out of it. While they wait for the
           stream, the next call fills the table again, and the first batch runs with the blocks of the second.
Control:   the same calls, and the host waits for the stream between them: every batch gets its own offsets.
Needs:     torch, a GPU, TensorRT-LLM (1.2, 1.3 up to rc20); no model. Takes half a minute, most of it imports.
"""

import sys
from typing import Any

import torch
from tensorrt_llm._torch.pyexecutor.resource_manager import KVCacheManager

from trtllm_kvfix.hazards.small import FIRST, LENGTH, SECOND, manager, offsets_shape

CYCLES = 1_000_000_000  # about half a second, for which the device is busy


def read_by_step(cache: Any, stream: Any, *, busy: bool, wait: bool, steps: int = 1) -> list[Any]:
    """What attention of the first batch would read, step by step. The second batch comes once, behind the first step.

    The tables on the device are fresh: nothing is recorded of them yet.
    """
    shape = offsets_shape(cache)
    first, second = (torch.zeros(shape, dtype=torch.int32, device="cuda") for _ in range(2))
    seen = torch.zeros(shape, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()
    read = []
    for step in range(steps):
        with torch.cuda.stream(stream):
            if busy and step == 0:
                torch.cuda._sleep(CYCLES)
            cache.copy_batch_block_offsets(first, FIRST, 1, len(FIRST), len(FIRST))
            seen.copy_(first, non_blocking=True)
            if wait:
                stream.synchronize()
            if step == 0:
                cache.copy_batch_block_offsets(second, SECOND, 1, len(SECOND), len(SECOND))
        stream.synchronize()
        read.append([pool[: len(FIRST)] for pool in seen.tolist()])
    return read


def code_of(cache: Any, stream: Any) -> int:
    """Ships both batches on the stream; returns the exit code."""
    cache.add_dummy_requests(FIRST + SECOND, [LENGTH] * 4)
    read_by_step(cache, stream, busy=False, wait=True)  # first uses allocate, which would wait for the device
    own = read_by_step(cache, stream, busy=False, wait=True)
    control, found = (read_by_step(cache, stream, busy=True, wait=wait) for wait in (True, False))
    print(f"with a wait between the calls the first batch got {'its own' if control == own else 'OTHER'} offsets")
    print(f"without one it got {'its own' if found == own else 'OTHER'} offsets")
    return 2 if control != own else int(found != own)


if not hasattr(KVCacheManager, "copy_batch_block_offsets"):
    print("this release keeps the table elsewhere")
    sys.exit(2)
chosen = torch.cuda.Stream()
sys.exit(code_of(manager(KVCacheManager, chosen), chosen))
