"""H3: a cached prefix that the scheduler counted on is evicted while the batch is admitted (KVCacheManager).

Shows:     of two requests of a batch, the first needs the room in which the second's cached prefix lies. Requests are
           added one by one, so the first evicts it, and the second computes more tokens than it was charged for.
Control:   the same two requests in the other order: the prefix is claimed before anything is evicted.
Needs:     torch, a GPU, TensorRT-LLM (1.1, 1.2, 1.3 up to rc12); no model. Takes half a minute, most of it imports.
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

TOKENS, BLOCKS = 32, 14
KEPT, OTHERS, LARGE = range(1000, 1000 + 6 * TOKENS), range(3000, 3000 + 4 * TOKENS), range(5000, 5000 + 6 * TOKENS)


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


def tokens_reused(*, large_first: bool) -> int:
    cache = manager()
    managers = resource_manager.ResourceManager({resource_manager.ResourceManagerType.KV_CACHE_MANAGER: cache})
    (dummy,) = cache.add_dummy_requests([0], [1], prepare_resource=False)

    def make(request_id: int, prompt: list[int]) -> Any:
        # The type that this release takes.
        more = {"sampling_config": dummy.sampling_config, "is_streaming": False}
        made = LlmRequest(request_id=request_id, max_new_tokens=2, input_tokens=prompt, **more)
        made.context_chunk_size = len(prompt)
        return made

    def step(requests: list[Any]) -> None:
        batch = ScheduledRequests()
        if hasattr(batch, "reset_context_requests"):
            batch.reset_context_requests(requests)
        else:
            batch.context_requests = requests
        managers.prepare_resources(batch)
        for request in requests:
            request.move_to_next_context_chunk()
        cache.update_resources(batch)

    for request_id, prompt in ((1, KEPT), (2, OTHERS)):
        request = make(request_id, [*prompt])
        step([request])
        request.add_new_token(1, 0)
        managers.free_resources(request)
    large, sharing = make(3, [*LARGE]), make(4, [*KEPT, *range(7000, 7000 + TOKENS)])
    step([large, sharing] if large_first else [sharing, large])
    return int(sharing.prepopulated_prompt_len)


control, found = tokens_reused(large_first=False), tokens_reused(large_first=True)
print(f"of {len(KEPT)} cached tokens the second request reuses {found}; admitted first, it reuses {control}")
sys.exit(2 if control < len(KEPT) else int(found < len(KEPT)))
