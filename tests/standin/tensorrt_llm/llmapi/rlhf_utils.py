"""What a Ray worker is extended with, so that a training loop can give it new weights."""

from collections.abc import Callable
from functools import wraps
from typing import Any


def control_action_decorator(method: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream has it in executor/ray: the call waits until no request is active, and none begins until it returns."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.engine.control_action():
            return method(self, *args, **kwargs)

    return call


class WorkerExtension:
    engine: Any  # the worker's executor

    @control_action_decorator
    def update_weights(self, ipc_handles: dict[str, Any] | None = None) -> None:
        """Once for each bucket of weights, and once without any, which ends the update."""
        if ipc_handles is not None:
            self.engine.contents.weights += 1
            return
        self.engine.reset_prefix_cache()

    @control_action_decorator
    def reset_prefix_cache(self) -> None:
        """Where an extension of the user's own has changed the weights."""
        self.engine.reset_prefix_cache()
