"""The connectors that run side by side: how each is named and set up, and what it still holds of a request."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

TOKENS_PER_BLOCK = 4
LAYERS = 2
HOST_BLOCKS = 64
BLOCK_BYTES = TOKENS_PER_BLOCK * LAYERS * 2 * 4


@dataclass(frozen=True)
class Client:
    name: str
    preset: str | None  # of upstream's registry
    module: str
    scheduler_class: str
    worker_class: str
    variables: dict[str, str]
    entries: Callable[[Any, int], int]  # what the scheduler side holds of a request
    wants_torch: bool = True
    asks_for_gpu: bool = False  # reads the number of the GPU from the pool
    offers: Callable[[Any, list[int]], int] | None = None  # where it saves when it has long said that it does not

    def config(self, *, presets: bool) -> dict[str, str]:
        if presets and self.preset is not None:
            return {"connector": self.preset}
        return {
            "connector_module": self.module,
            "connector_scheduler_class": self.scheduler_class,
            "connector_worker_class": self.worker_class,
        }


def kvbm_offers(scheduler: Any, tokens: list[int]) -> int:
    """Counts the tokens that KVBM would offer somebody with these tokens now. Asked behind the back of what takes down
    the calls, for a request that never runs: nothing else says when a save is over."""
    request: Any = import_module("kvbm.trtllm_integration.rust").KvbmRequest
    name = "nobody"
    scheduler._connector.create_slot(request(request_id=name, lora_name=None, salt_hash=None), tokens)
    offered, _ = scheduler._connector.get_num_new_matched_tokens(name, len(tokens), 0)
    scheduler._connector.request_finished(name, [])
    return int(offered)


KVBM = Client(
    name="kvbm",
    preset="kvbm",
    module="kvbm.trtllm_integration.connector",
    scheduler_class="DynamoKVBMConnectorLeader",
    worker_class="DynamoKVBMConnectorWorker",
    variables={
        "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS": str(HOST_BLOCKS),
        "DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR": "false",
        "DYN_LOG": "error",
    },
    entries=lambda scheduler, request_id: int(scheduler._connector.has_slot(str(request_id))),
    asks_for_gpu=True,
    offers=kvbm_offers,
)
LMCACHE = Client(
    name="lmcache",
    preset="lmcache",
    module="lmcache.integration.tensorrt_llm.tensorrt_adapter",
    scheduler_class="LMCacheKvConnectorScheduler",
    worker_class="LMCacheKvConnectorWorker",
    variables={
        "LMCACHE_CHUNK_SIZE": str(TOKENS_PER_BLOCK),
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.01",  # GiB
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_LOG_LEVEL": "ERROR",
        "PYTHONHASHSEED": "0",
    },
    entries=lambda scheduler, request_id: int(request_id in scheduler._pending),
)
OURS = Client(
    name="ours",
    preset=None,
    module="trtllm_kvfix.offload",
    scheduler_class="KvfixOffloadScheduler",
    worker_class="KvfixOffloadWorker",
    variables={"TRTLLM_KVFIX_OFFLOAD_HOST_BYTES": str(HOST_BLOCKS * BLOCK_BYTES)},
    entries=lambda scheduler, request_id: int(
        request_id in scheduler.side._live or request_id in scheduler.side._finishing
    ),
    wants_torch=False,
)
CLIENTS = {client.name: client for client in (KVBM, LMCACHE, OURS)}


def write_model(folder: Path) -> None:
    """LMCache reads the sizes of the heads from the checkpoint."""
    sizes = {"model_type": "llama", "hidden_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 1}
    (folder / "config.json").write_text(json.dumps(sizes | {"num_hidden_layers": LAYERS}))
