"""H1: block offsets of one batch arrive as those of the next (KVCacheManager).

Shows:     copy_batch_block_offsets fills one pinned table and enqueues copies out of it. While they wait for the
           stream, the next call fills the table again, and the first batch runs with the blocks of the second.
Control:   the same calls, and the host waits for the stream between them: every batch gets its own offsets.
Needs:     torch, a GPU, TensorRT-LLM (1.2, 1.3 up to rc20); no model. Takes half a minute, most of it imports.
Exit code: 1 the hazard shows, 0 it does not, 2 it cannot be looked at here, or the control is wrong.
"""

import inspect
import sys
from typing import Any

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(2))  # type: ignore[func-returns-value]  # not 1

import torch
from tensorrt_llm._torch.pyexecutor.resource_manager import KVCacheManager
from tensorrt_llm.bindings import DataType
from tensorrt_llm.bindings.internal.batch_manager import CacheType
from tensorrt_llm.llmapi.llm_args import KvCacheConfig
from tensorrt_llm.mapping import Mapping

TOKENS, ROWS = 32, 8  # of a block, of a batch at most
CYCLES = 1_000_000_000  # about half a second, for which the device is busy
FIRST, SECOND = [1, 2], [3, 4]
Offsets = list[Any]


def manager(stream: Any) -> Any:
    """As small as it gets. Releases differ in what they take."""
    wanted = {
        "num_layers": 2, "num_kv_heads": 1, "head_dim": 64, "tokens_per_block": TOKENS, "max_seq_len": 8 * TOKENS,
        "max_batch_size": ROWS, "mapping": Mapping(world_size=1, tp_size=1, rank=0), "dtype": DataType.HALF,
        "vocab_size": 1000, "execution_stream": stream,
    }  # fmt: skip
    taken = inspect.signature(KVCacheManager).parameters
    config = KvCacheConfig(max_tokens=64 * TOKENS, enable_block_reuse=False)
    return KVCacheManager(config, CacheType.SELF, **{name: wanted[name] for name in wanted if name in taken})


def main() -> int:
    if not hasattr(KVCacheManager, "copy_batch_block_offsets"):
        print("this release keeps the table elsewhere")
        return 2
    stream = torch.cuda.Stream()
    cache = manager(stream)
    cache.add_dummy_requests(FIRST + SECOND, [2 * TOKENS + 6] * 4)
    shape = (cache.num_pools, ROWS, 2, cache.max_blocks_per_seq)
    on_device = torch.zeros(shape, dtype=torch.int32, device="cuda")
    seen = torch.zeros(shape, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()

    def ship(batch: list[int]) -> None:
        cache.copy_batch_block_offsets(on_device, batch, 1, len(batch), len(batch))

    def arrived(*, busy: bool, wait: bool) -> Offsets:
        with torch.cuda.stream(stream):
            if busy:
                torch.cuda._sleep(CYCLES)
            ship(FIRST)
            seen.copy_(on_device, non_blocking=True)  # what attention of the first batch would read
            if wait:
                stream.synchronize()
            ship(SECOND)
        stream.synchronize()
        return [pool[: len(FIRST)] for pool in seen.tolist()]

    arrived(busy=False, wait=True)  # first uses allocate, which would wait for the device
    own = arrived(busy=False, wait=True)
    control, found = arrived(busy=True, wait=True), arrived(busy=True, wait=False)
    print(f"with a wait between the calls the first batch got {'its own' if control == own else 'OTHER'} offsets")
    print(f"without one it got {'its own' if found == own else 'OTHER'} offsets")
    return 2 if control != own else int(found != own)


if __name__ == "__main__":
    sys.exit(main())
