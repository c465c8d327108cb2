"""H2: block offsets of one batch arrive as those of the next (KVCacheManagerV2).

Shows:     copy_batch_block_offsets launches a kernel that reads pinned host memory when it runs. While it waits for
           the stream, the next call overwrites the copy index: the first batch runs with the blocks of the second.
Control:   the same calls, and the host waits for the stream between them: every batch gets its own offsets.
Needs:     torch, a GPU, TensorRT-LLM (1.2 and later); no model. Takes half a minute, most of it imports.
"""

import sys
from importlib import import_module
from typing import Any

import torch
from tensorrt_llm import bindings  # noqa: F401  fails here if it is not installed

from trtllm_kvfix.hazards.h1_block_offsets_v1.reproducer import code_of
from trtllm_kvfix.hazards.small import PYEXECUTOR, manager

PLACES = ("kv_cache.kv_cache_manager_v2", "kv_cache_manager_v2", "resource_manager")


def kind() -> Any:
    for place in PLACES:
        try:
            return import_module(f"{PYEXECUTOR}.{place}").KVCacheManagerV2
        except (ImportError, AttributeError):
            continue
    return None


if (cls := kind()) is None:
    print("this release has no KVCacheManagerV2")
    sys.exit(2)
cache = manager(cls, torch.cuda.Stream())
sys.exit(code_of(cache, cache._stream))  # the manager launches its kernel on a stream of its own
