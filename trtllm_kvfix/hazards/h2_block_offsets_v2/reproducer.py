"""H2: block offsets of one batch arrive as those of the next (KVCacheManagerV2).

Shows:     copy_batch_block_offsets launches a kernel that reads pinned host memory when it runs. While it waits for
           the stream, the next call overwrites the copy index: the first batch runs with the blocks of the second.
Control:   the same calls, and the host waits for the stream between them: every batch gets its own offsets.
Needs:     torch, a GPU, TensorRT-LLM (1.2 and later); no model. Takes half a minute, most of it imports.
Exit code: 1 the hazard shows, 0 it does not, 2 it cannot be looked at here, or the control is wrong.
"""

import inspect
import sys
from importlib import import_module
from typing import Any

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(2))  # type: ignore[func-returns-value]  # not 1

import torch
from tensorrt_llm.bindings import DataType
from tensorrt_llm.bindings.internal.batch_manager import CacheType
from tensorrt_llm.llmapi.llm_args import KvCacheConfig
from tensorrt_llm.mapping import Mapping

TOKENS, ROWS = 32, 8  # of a block, of a batch at most
CYCLES = 1_000_000_000  # about half a second, for which the device is busy
FIRST, SECOND = [1, 2], [3, 4]
PLACES = ("kv_cache.kv_cache_manager_v2", "kv_cache_manager_v2", "resource_manager")


def kind() -> Any:
    for place in PLACES:
        try:
            return import_module(f"tensorrt_llm._torch.pyexecutor.{place}").KVCacheManagerV2
        except (ImportError, AttributeError):
            continue
    return None


def manager(cls: Any, stream: Any) -> Any:
    wanted = {
        "num_layers": 2, "num_kv_heads": 1, "head_dim": 64, "tokens_per_block": TOKENS, "max_seq_len": 8 * TOKENS,
        "max_batch_size": ROWS, "mapping": Mapping(world_size=1, tp_size=1, rank=0), "dtype": DataType.HALF,
        "vocab_size": 1000, "execution_stream": stream,
    }  # fmt: skip
    taken = inspect.signature(cls).parameters
    swallows = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    config = KvCacheConfig(max_tokens=64 * TOKENS, enable_block_reuse=False)
    return cls(config, CacheType.SELF, **{name: wanted[name] for name in wanted if swallows or name in taken})


def main() -> int:
    if (cls := kind()) is None:
        print("this release has no KVCacheManagerV2")
        return 2
    cache = manager(cls, torch.cuda.Stream())
    stream = cache._stream  # on which the kernel is launched
    cache.add_dummy_requests(FIRST + SECOND, [2 * TOKENS + 6] * 4)
    shape = (getattr(cache, "num_attention_op_pools", cache.num_pools), ROWS, 2, cache.max_blocks_per_seq)
    on_device = torch.zeros(shape, dtype=torch.int32, device="cuda")
    seen = torch.zeros(shape, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()

    def arrived(*, busy: bool, wait: bool) -> list[Any]:
        with torch.cuda.stream(stream):
            if busy:
                torch.cuda._sleep(CYCLES)
            cache.copy_batch_block_offsets(on_device, FIRST, 1, 2, 2)
            seen.copy_(on_device, non_blocking=True)  # what attention of the first batch would read
            if wait:
                stream.synchronize()
            cache.copy_batch_block_offsets(on_device, SECOND, 1, 2, 2)
        stream.synchronize()
        return [pool[: len(FIRST)] for pool in seen.tolist()]

    _, own = arrived(busy=False, wait=True), arrived(busy=False, wait=True)  # first uses allocate
    control, found = arrived(busy=True, wait=True), arrived(busy=True, wait=False)
    print(f"the first batch got its own offsets with a wait: {control == own}, without one: {found == own}")
    return 2 if control != own else int(found != own)


sys.exit(main())
