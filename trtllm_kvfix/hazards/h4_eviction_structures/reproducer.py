"""H4: a second thread pins blocks while an admission is inside the bound manager.

Shows:     from inside an admission (the bound manager asks its connector) another thread calls pin_blocks_by_id, and
           comes in. Eviction queues and reference counts are not locked. What two threads do to them is up to chance.
Control:   the same call with no other thread in the manager comes to its end, too.
Needs:     torch, a GPU, a TensorRT-LLM whose manager binds pin_blocks_by_id; no model. Takes half a minute.
Exit code: 1 the hazard shows, 0 the thread had to wait, 2 it cannot be looked at here, or the control is wrong.
"""

import inspect
import sys
import threading
from typing import Any

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(2))  # type: ignore[func-returns-value]  # not 1

import torch
from tensorrt_llm._torch.pyexecutor import resource_manager
from tensorrt_llm._torch.pyexecutor.llm_request import LlmRequest
from tensorrt_llm._torch.pyexecutor.scheduler import ScheduledRequests
from tensorrt_llm.bindings import DataType
from tensorrt_llm.bindings.internal.batch_manager import CacheType, KvCacheConnectorManager
from tensorrt_llm.llmapi.llm_args import KvCacheConfig
from tensorrt_llm.mapping import Mapping

TOKENS = 32
asked: Any = int  # what the bound manager gets for an answer: nothing to load


class Connector(KvCacheConnectorManager):  # type: ignore[misc]
    def get_num_new_matched_tokens(self, *_: Any) -> int:
        return int(asked())


wanted = {
    "num_layers": 2, "num_kv_heads": 1, "head_dim": 64, "tokens_per_block": TOKENS, "max_seq_len": 10 * TOKENS,
    "max_batch_size": 8, "mapping": Mapping(world_size=1, tp_size=1, rank=0), "dtype": DataType.HALF,
    "vocab_size": 10_000, "execution_stream": torch.cuda.Stream(), "kv_connector_manager": Connector(),
}  # fmt: skip
taken = inspect.signature(resource_manager.KVCacheManager).parameters
config = KvCacheConfig(max_tokens=32 * TOKENS, enable_block_reuse=True)
given = {name: wanted[name] for name in wanted if name in taken}
cache: Any = resource_manager.KVCacheManager(config, CacheType.SELF, **given)
cache.kv_connector_manager = None  # it is C++ that asks; what Python tells a connector is not needed
if not hasattr(cache.impl, "pin_blocks_by_id"):
    print("this build binds no pin_blocks_by_id for other threads to call")
    sys.exit(2)
(dummy,), came_in = cache.add_dummy_requests([0], [1], prepare_resource=False), list[bool]()


def admit(request_id: int, first: int) -> list[int]:
    more = {"sampling_config": dummy.sampling_config, "is_streaming": False}  # of the type that this release takes
    prompt = [*range(first, first + 3 * TOKENS)]
    request = LlmRequest(request_id=request_id, max_new_tokens=2, input_tokens=prompt, **more)
    request.context_chunk_size = len(prompt)
    batch = ScheduledRequests()
    batch.reset_context_requests([request])
    cache.prepare_resources(batch)
    return list(cache.get_cache_indices(request))


def pin_in_a_thread() -> int:
    if len(came_in) < 2:
        thread = threading.Thread(target=cache.impl.pin_blocks_by_id, args=(blocks,), daemon=True)
        thread.start()
        thread.join(timeout=1)
        came_in.append(not thread.is_alive())
    return 0


blocks = admit(1, 1000)
pin_in_a_thread()
asked = pin_in_a_thread
admit(2, 3000)
if came_in[:1] != [True] or len(came_in) < 2:
    print("the control did not pin, or the bound manager did not ask its connector")
    sys.exit(2)
print(f"while an admission was inside the manager, another thread {'CAME IN' if came_in[1] else 'had to wait'}")
sys.exit(int(came_in[1]))
