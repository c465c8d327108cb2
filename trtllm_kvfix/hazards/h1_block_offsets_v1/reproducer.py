"""H1: block offsets of one batch arrive as those of the next (KVCacheManager).

Shows:     copy_batch_block_offsets fills one pinned table and enqueues copies out of it. While they wait for the
           stream, the next call fills the table again, and the first batch runs with the blocks of the second.
Control:   the same calls, and the host waits for the stream between them: every batch gets its own offsets.
Needs:     torch, a GPU, TensorRT-LLM (1.2, 1.3 up to rc20); no model. Takes half a minute, most of it imports.
Exit code: 1 the hazard shows, 0 it does not, 2 it cannot be looked at here, or the control is wrong.
"""

import sys
from typing import Any

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(2))  # type: ignore[func-returns-value]  # not 1

import torch
from tensorrt_llm._torch.pyexecutor.resource_manager import KVCacheManager

from trtllm_kvfix.hazards.small import ROWS_MAX, TOKENS_PER_BLOCK, manager

CYCLES = 1_000_000_000  # about half a second, for which the device is busy
FIRST, SECOND = [1, 2], [3, 4]


def code_of(cache: Any, stream: Any) -> int:
    """Ships both batches on the stream; returns the exit code."""
    cache.add_dummy_requests(FIRST + SECOND, [2 * TOKENS_PER_BLOCK + 6] * 4)
    shape = (getattr(cache, "num_attention_op_pools", cache.num_pools), ROWS_MAX, 2, cache.max_blocks_per_seq)
    on_device = torch.zeros(shape, dtype=torch.int32, device="cuda")
    seen = torch.zeros(shape, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()

    def arrived(*, busy: bool, wait: bool) -> list[Any]:
        with torch.cuda.stream(stream):
            if busy:
                torch.cuda._sleep(CYCLES)
            cache.copy_batch_block_offsets(on_device, FIRST, 1, len(FIRST), len(FIRST))
            seen.copy_(on_device, non_blocking=True)  # what attention of the first batch would read
            if wait:
                stream.synchronize()
            cache.copy_batch_block_offsets(on_device, SECOND, 1, len(SECOND), len(SECOND))
        stream.synchronize()
        return [pool[: len(FIRST)] for pool in seen.tolist()]

    arrived(busy=False, wait=True)  # first uses allocate, which would wait for the device
    own = arrived(busy=False, wait=True)
    control, found = arrived(busy=True, wait=True), arrived(busy=True, wait=False)
    print(f"with a wait between the calls the first batch got {'its own' if control == own else 'OTHER'} offsets")
    print(f"without one it got {'its own' if found == own else 'OTHER'} offsets")
    return 2 if control != own else int(found != own)


if not hasattr(KVCacheManager, "copy_batch_block_offsets"):
    print("this release keeps the table elsewhere")
    sys.exit(2)
chosen = torch.cuda.Stream()
sys.exit(code_of(manager(KVCacheManager, chosen), chosen))
