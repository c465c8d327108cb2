"""A connector that writes down its calls. Imported by name, from the server's configuration.

Build it inside `upstream(...)`: its bases are those of the variant that is imported there.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def connector_module() -> Any:
    """It has moved (surface 6.3)."""
    try:
        return import_module("tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector")
    except ModuleNotFoundError:
        return import_module("tensorrt_llm._torch.pyexecutor.kv_cache_connector")


def __getattr__(name: str) -> Any:
    """The classes are made when they are asked for."""
    if name == "Worker":
        return _worker_class()
    if name == "Scheduler":
        return _scheduler_class()
    raise AttributeError(name)


def _worker_class() -> Any:
    base: Any = connector_module().KvCacheConnectorWorker

    class Worker(base):  # type: ignore[misc]
        def __init__(self, llm_args: Any) -> None:
            super().__init__(llm_args)
            self.holds_back = False  # what it has begun to load and to save
            self.invented: list[int] = []  # ids that nobody gave it
            self._begun: tuple[list[int], list[int]] = ([], [])
            self.layers: list[tuple[str, int, int]] = []  # what was called for them, and on which streams
            self.passes = 0

        def register_forward_pass_callable(self) -> Callable[[], None]:
            return self.count_pass

        def count_pass(self) -> None:
            self.passes += 1
            self.layers.append(("pass", self.passes, 0))

        def register_kv_caches(self, kv_cache_tensor: Any) -> None:
            self.pool = kv_cache_tensor

        def start_load_kv(self, stream: Any) -> None:
            self.loaded_on = stream.cuda_stream

        def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
            self.layers.append(("load", layer_idx, stream.cuda_stream))

        def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
            self.layers.append(("save", layer_idx, stream.cuda_stream))

        def wait_for_save(self, stream: Any) -> None:
            self.saved_on = stream.cuda_stream

        def get_finished(self, finished: list[int], started: list[int]) -> tuple[list[int], list[int]]:
            saving, loading = self._begun[0] + finished, self._begun[1] + started
            self._begun = (saving, loading) if self.holds_back else ([], [])
            return ([], []) if self.holds_back else (saving + self.invented, loading)

    return Worker


def _scheduler_class() -> Any:
    base: Any = connector_module().KvCacheConnectorScheduler

    class Scheduler(base):  # type: ignore[misc]
        def __init__(self, llm_args: Any) -> None:
            super().__init__(llm_args)
            self.outputs: list[Any] = []
            self.allocated: list[int] = []
            self.finished: list[int] = []
            self.asked: list[Any] = []  # the objects that it was given
            self.matched = 0  # tokens that it says it can load
            self.is_async = False
            self.only: set[int] | None = None  # whom it loads anything for; None for everybody
            self.saves = False

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            self.outputs.append(scheduler_output)
            return scheduler_output

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            self.asked.append(request)
            if self.only is not None and request.request_id not in self.only:
                return 0, False
            matched = min(self.matched, request.prompt_len - 1 - num_computed_tokens)
            return matched, self.is_async and matched > 0

        def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
            assert block_ids
            self.allocated.append(request.request_id)

        def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
            assert cache_block_ids
            again = request.request_id in self.finished
            self.finished.append(request.request_id)
            return self.saves and not again  # upstream would count a second save, which nobody ends

    return Scheduler


CONFIG = {
    "connector_module": __name__,
    "connector_worker_class": "Worker",
    "connector_scheduler_class": "Scheduler",
}
