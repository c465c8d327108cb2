"""H8: blocks that nobody has computed are offered for reuse (KVCacheManager, chunked prefill).

Shows:     a request is in the middle of its prompt: two blocks of seven have been computed. A second request with the
           same prompt reuses more than those two, so it attends to whatever the blocks' last owner left.
Control:   the same second request when the first has computed its whole prompt: it reuses all of it, rightly.
Needs:     torch, a GPU, TensorRT-LLM (1.1, 1.2.0; 1.2.1 is fixed); no model. Takes half a minute, most of it imports.
Exit code: 1 the hazard shows, 0 it does not, 2 it cannot be looked at here, or the control is wrong.
"""

import inspect
import sys
from typing import Any

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(2))  # type: ignore[func-returns-value]  # not 1

import torch
from tensorrt_llm._torch.pyexecutor import resource_manager
from tensorrt_llm._torch.pyexecutor.llm_request import LlmRequest
from tensorrt_llm._torch.pyexecutor.scheduler import ScheduledRequests
from tensorrt_llm.bindings import DataType
from tensorrt_llm.bindings.internal.batch_manager import CacheType
from tensorrt_llm.llmapi.llm_args import KvCacheConfig
from tensorrt_llm.mapping import Mapping

TOKENS, BLOCKS = 32, 32
PROMPT = [*range(100, 100 + 7 * TOKENS + 1)]


def manager() -> Any:
    """As small as it gets. Releases differ in what they take."""
    wanted = {
        "num_layers": 2, "num_kv_heads": 1, "head_dim": 64, "tokens_per_block": TOKENS, "max_seq_len": 10 * TOKENS,
        "max_batch_size": 8, "mapping": Mapping(world_size=1, tp_size=1, rank=0), "dtype": DataType.HALF,
        "vocab_size": 10_000, "execution_stream": torch.cuda.Stream(),
    }  # fmt: skip
    taken = inspect.signature(resource_manager.KVCacheManager).parameters
    options = {"max_tokens": BLOCKS * TOKENS, "tokens_per_block": TOKENS, "enable_block_reuse": True}
    config = KvCacheConfig(**{name: options[name] for name in options if name in KvCacheConfig.model_fields})
    wanted = {name: value for name, value in wanted.items() if name in taken}
    return resource_manager.KVCacheManager(config, CacheType.SELF, **wanted)


def tokens_reused(computed: int) -> int:
    """Tokens that a second request reuses when `computed` tokens of the first have been computed."""
    cache = manager()
    managers = resource_manager.ResourceManager({resource_manager.ResourceManagerType.KV_CACHE_MANAGER: cache})
    (dummy,) = cache.add_dummy_requests([0], [1], prepare_resource=False)

    def make(request_id: int, chunk: int) -> Any:
        # The type that this release takes.
        more = {"sampling_config": dummy.sampling_config, "is_streaming": False}
        made = LlmRequest(request_id=request_id, max_new_tokens=2, input_tokens=PROMPT, **more)
        made.context_chunk_size = chunk
        return made

    def step(request: Any) -> None:
        batch = ScheduledRequests()
        if hasattr(batch, "reset_context_requests"):
            batch.reset_context_requests([request])
        else:
            batch.context_requests = [request]
        managers.prepare_resources(batch)
        request.move_to_next_context_chunk()
        cache.update_resources(batch)

    step(make(1, computed))
    second = make(2, len(PROMPT))
    step(second)
    return int(second.prepopulated_prompt_len)


chunk = 2 * TOKENS
control, found = tokens_reused(len(PROMPT)), tokens_reused(chunk)
print(f"{chunk} of {len(PROMPT)} tokens computed: {found} reused; all computed: {control} reused")
sys.exit(2 if control < len(PROMPT) - 1 else int(found > chunk))
