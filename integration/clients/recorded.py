"""Takes down what upstream calls of a connector: a subclass of each of its two classes takes the place of the class."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

Calls = list[tuple[Any, ...]]
Changed = Callable[[Any], Any]


def record(module: ModuleType, scheduler_name: str, worker_name: str, calls: Calls, pool_for: Changed) -> None:
    """pool_for: what the worker is given in place of the pool, where it wants torch's kind of tensor."""
    setattr(module, scheduler_name, scheduler_class(getattr(module, scheduler_name), calls))
    setattr(module, worker_name, worker_class(getattr(module, worker_name), calls, pool_for))


def scheduler_class(base: Any, calls: Calls) -> type:
    class Scheduler(base):  # type: ignore[misc]
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            answer: tuple[int, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
            calls.append(("match", request.request_id, num_computed_tokens, *answer))
            return answer

        def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
            calls.append(("alloc", request.request_id, len(block_ids)))
            super().update_state_after_alloc(request, block_ids)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            calls.append(("build", *map(told, scheduler_output.new_requests), "cached",
                          *map(told, scheduler_output.cached_requests)))  # fmt: skip
            return super().build_connector_meta(scheduler_output)

        def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
            calls.append(("finished", request.request_id, len(cache_block_ids)))
            return bool(super().request_finished(request, cache_block_ids))

    return Scheduler


def worker_class(base: Any, calls: Calls, pool_for: Changed) -> type:
    class Worker(base):  # type: ignore[misc]
        def register_kv_caches(self, kv_cache_tensor: Any) -> None:
            calls.append(("register", tuple(kv_cache_tensor.shape)))
            super().register_kv_caches(pool_for(kv_cache_tensor))

        def start_load_kv(self, stream: Any) -> None:
            calls.append(("load",))
            super().start_load_kv(stream)

        def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
            calls.append(("load layer", layer_idx))
            super().wait_for_layer_load(layer_idx, stream)

        def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
            calls.append(("save layer", layer_idx))
            super().save_kv_layer(layer_idx, stream)

        def wait_for_save(self, stream: Any) -> None:
            calls.append(("save",))
            super().wait_for_save(stream)

        def get_finished(self, finished: list[int], started: list[int]) -> tuple[list[int], list[int]]:
            """Asked as often as the loop has turned, and whether a save is over by then is a matter of time. A load is
            reported once and comes back once, with nothing in between."""
            saved, loaded = super().get_finished(finished, started)
            if started:
                calls.append(("loading", *started))
            if loaded:
                calls.append(("loaded", *loaded))
            return saved, loaded

    return Worker


def told(data: Any) -> tuple[int, ...]:
    new = len(data.new_tokens), len(data.new_block_ids)
    return data.request_id, *new, data.computed_position, data.num_scheduled_tokens
