"""H4: a second thread pins blocks while an admission is inside the bound manager.

Shows:     from inside an admission (the bound manager asks its connector) another thread calls pin_blocks_by_id, and
           comes in. Eviction queues and reference counts are not locked. What two threads do to them is up to chance.
Control:   the same call with no other thread in the manager comes to its end, too.
Needs:     torch, a GPU, a TensorRT-LLM whose manager binds pin_blocks_by_id; no model. Takes half a minute.
"""

import sys
import threading
from typing import Any

import torch
from tensorrt_llm.bindings.internal.batch_manager import KvCacheConnectorManager

from trtllm_kvfix.hazards.small import TOKENS_PER_BLOCK, Requests

asked: Any = int  # what the bound manager gets for an answer: nothing to load
came_in: list[bool] = []


class Connector(KvCacheConnectorManager):  # type: ignore[misc]
    def get_num_new_matched_tokens(self, *_: Any) -> int:
        return int(asked())


requests = Requests(torch.cuda.Stream(), blocks=32, kv_connector_manager=Connector())
cache = requests.cache
cache.kv_connector_manager = None  # it is C++ that asks; what Python tells a connector is not needed
if not hasattr(cache.impl, "pin_blocks_by_id"):
    print("this build binds no pin_blocks_by_id for other threads to call")
    sys.exit(2)


def admit(request_id: int, first: int) -> list[int]:
    request = requests.make(request_id, range(first, first + 3 * TOKENS_PER_BLOCK))
    requests.admit([request])
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
