"""A server behind upstream's own class of capacity scheduler, of which what it calls is bound."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from integration.upstream.loading import EXECUTOR
from integration.upstream.native_server import FittingScheduler
from integration.upstream.server import Server


class FullPoolServer(Server):
    def _scheduler(self, states: Any) -> Any:
        policy = getattr(self.batch_manager.CapacitySchedulerPolicy, self.shape.policy)
        capacity = import_module(f"{EXECUTOR}.scheduler.scheduler").BindCapacityScheduler(
            self.shape.max_batch_size, self.manager.impl, None, SimpleNamespace(_to_pybind=lambda: policy)
        )

        def schedule_request(active: list[Any]) -> Any:
            found = capacity.schedule_request(active)
            if not found[0]:
                self.device.settle()  # everybody waits for a load, and nobody for the device
            return found

        return FittingScheduler(self.shape, states, schedule_request)
