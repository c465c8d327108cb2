"""Connectors (surface 6.3): the module has moved between B and C."""

from ..._standin.connector import (
    KvCacheConnectorManager,
    KvCacheConnectorScheduler,
    KvCacheConnectorWorker,
    RequestData,
    SchedulerOutput,
)
from ..._standin.variant import before, only_if

only_if(before("C"), __name__)

__all__ = [
    "KvCacheConnectorManager",
    "KvCacheConnectorScheduler",
    "KvCacheConnectorWorker",
    "RequestData",
    "SchedulerOutput",
]
