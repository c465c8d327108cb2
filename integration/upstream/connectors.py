"""Connectors of the scenarios: one that only records, in upstream's own manager; and ours."""

import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from integration.upstream.finder import Tree

PLACES = ("connectors.kv_cache_connector", "kv_cache_connector")


def connector_module(tree: Tree) -> Any:
    for place in PLACES:
        name = f"tensorrt_llm._torch.pyexecutor.{place}"
        if (tree.root / (name.replace(".", "/") + ".py")).exists():
            return import_module(name)
    raise LookupError("the tree has no connector")


class Calls:
    """The calls of a connector, in order. Batches are written as who is in them."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def note(self, method: str, *args: Any) -> None:
        self.made.append((method, ", ".join(_words(each) for each in args)))


def _words(value: Any) -> str:
    if hasattr(value, "request_id"):
        new = getattr(value, "new_block_ids", None)
        return f"request {value.request_id}" + (f" {new}" if new is not None else "")
    if hasattr(value, "new_requests"):
        return f"new {[_words(e) for e in value.new_requests]} cached {[_words(e) for e in value.cached_requests]}"
    return "stream" if hasattr(value, "cuda_stream") else repr(value)


def recording(tree: Tree, calls: Calls) -> Any:
    """Upstream's connector manager over a connector that records every call and never has anything."""
    module: Any = connector_module(tree)
    worker = _recording_worker(module.KvCacheConnectorWorker, calls)
    return module.KvCacheConnectorManager(worker, _recording_scheduler(module.KvCacheConnectorScheduler, calls))


def _recording_scheduler(base: Any, calls: Calls) -> Any:
    class Scheduler(base):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            calls.note("get_num_new_matched_tokens", request, num_computed_tokens)
            return 0, False

        def update_state_after_alloc(self, request: Any, block_ids: Any) -> None:
            calls.note("update_state_after_alloc", request, list(block_ids))

        def update_state_after_alloc_by_layer_group(self, request: Any, block_ids_by_layer_group: Any) -> None:
            calls.note("update_state_after_alloc_by_layer_group", request, [list(e) for e in block_ids_by_layer_group])

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            calls.note("build_connector_meta", scheduler_output)
            return None

        def request_finished(self, request: Any, cache_block_ids: Any) -> bool:
            calls.note("request_finished", request, list(cache_block_ids))
            return False

        def request_finished_by_layer_group(self, request: Any, cache_block_ids_by_layer_group: Any) -> bool:
            calls.note("request_finished_by_layer_group", request, [list(e) for e in cache_block_ids_by_layer_group])
            return False

    return Scheduler()


def _recording_worker(base: Any, calls: Calls) -> Any:
    class Worker(base):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def register_kv_caches(self, kv_cache_tensor: Any) -> None:  # noqa: ARG002
            calls.note("register_kv_caches")

        def register_kv_cache_layout(self, layout: Any) -> None:
            calls.note("register_kv_cache_layout", len(layout.groups))

        def bind_connector_meta(self, metadata: Any) -> None:  # noqa: ARG002
            calls.note("bind_connector_meta")

        def start_load_kv(self, stream: Any) -> None:  # noqa: ARG002
            calls.note("start_load_kv")

        def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:  # noqa: ARG002
            calls.note("wait_for_layer_load", layer_idx)

        def save_kv_layer(self, layer_idx: int, stream: Any) -> None:  # noqa: ARG002
            calls.note("save_kv_layer", layer_idx)

        def wait_for_save(self, stream: Any) -> None:  # noqa: ARG002
            calls.note("wait_for_save")

        def get_finished(self, finished_gen_req_ids: Any, started_loading_req_ids: Any) -> tuple[list[int], list[int]]:
            calls.note("get_finished", list(finished_gen_req_ids), list(started_loading_req_ids))
            return [], []

    return Worker()


def ours(tree: Tree, shape: Any, *, attention_dp: bool = False) -> Any:
    """The offload connector of this package in upstream's connector manager, with a small host tier."""
    module = connector_module(tree)  # first: ours derives from what has been imported
    from trtllm_kvfix.offload import connector as offload  # noqa: PLC0415  its bases are the tree's

    os.environ["TRTLLM_KVFIX_OFFLOAD_HOST_BYTES"] = str(1 << 20)
    config = SimpleNamespace(
        tokens_per_block=shape.tokens_per_block,
        enable_block_reuse=shape.reuse,
        max_attention_window=None,
        host_cache_size=None,
        dtype="auto",
    )
    args = SimpleNamespace(
        kv_cache_config=config, max_seq_len=shape.max_seq_len, speculative_config=None, enable_attention_dp=attention_dp
    )
    sides = offload.KvfixOffloadWorker(args), offload.KvfixOffloadScheduler(args)
    return module.KvCacheConnectorManager(*sides, **({"enable_attention_dp": True} if attention_dp else {}))
