"""Connectors that a configuration can name by one word. Nothing is imported here."""

CONNECTOR_REGISTRY: dict[str, dict[str, str]] = {
    "kvbm": {
        "connector_module": "kvbm.trtllm_integration.connector",
        "connector_scheduler_class": "DynamoKVBMConnectorLeader",
        "connector_worker_class": "DynamoKVBMConnectorWorker",
    },
    "lmcache": {
        "connector_module": "lmcache.integration.tensorrt_llm.tensorrt_adapter",
        "connector_scheduler_class": "LMCacheKvConnectorScheduler",
        "connector_worker_class": "LMCacheKvConnectorWorker",
    },
    "lmcache-mp": {
        "connector_module": "lmcache.integration.tensorrt_llm.tensorrt_mp_adapter",
        "connector_scheduler_class": "LMCacheMPKvConnectorScheduler",
        "connector_worker_class": "LMCacheMPKvConnectorWorker",
    },
}
