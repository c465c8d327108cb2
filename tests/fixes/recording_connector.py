"""A connector that takes down its calls, for the stand-in's `kv_connector_config`."""

from importlib import import_module
from typing import Any

# Imported inside the stand-in's variant only, whose module has moved between variants.
PLACES = ("connectors.kv_cache_connector", "kv_cache_connector")


def _base() -> Any:
    for place in PLACES:
        try:
            return import_module(f"tensorrt_llm._torch.pyexecutor.{place}")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("the stand-in has no connectors")


class Scheduler(_base().KvCacheConnectorScheduler):  # type: ignore[misc]  # the variant's
    """`steps` has, for each report, the requests allocated since the last one, and those that it names first."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self._told: list[int] = []
        self.steps: list[tuple[list[int], list[int]]] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        del request, num_computed_tokens
        return 0, False

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        del block_ids
        self._told.append(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> None:
        if scheduler_output is not None:
            self.steps.append((self._told, [data.request_id for data in scheduler_output.new_requests]))
            self._told = []

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        del request, cache_block_ids
        return False


class Worker(_base().KvCacheConnectorWorker):  # type: ignore[misc]  # the variant's
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...

    def start_load_kv(self, stream: Any) -> None: ...

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    def wait_for_save(self, stream: Any) -> None: ...

    def get_finished(self, finished: list[int], started: list[int]) -> tuple[list[int], list[int]]:
        del finished, started
        return [], []
