"""Connectors (surface 6.3): the module has moved between B and C."""

from ...._standin.connector import (
    KvCacheConnectorManager,
    KvCacheConnectorScheduler,
    KvCacheConnectorWorker,
    RequestData,
    SchedulerOutput,
)

__all__ = [
    "KvCacheConnectorManager",
    "KvCacheConnectorScheduler",
    "KvCacheConnectorWorker",
    "RequestData",
    "SchedulerOutput",
]
