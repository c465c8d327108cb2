"""A connector learns where the pages of the V2 runtime lie from the newest executor's call."""

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import late

LAYOUT = "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_layout"
ROLES = ("key", "value")
BYTES = 16  # of one role of a page


class Memory:
    """The part of the runtime's manager that upstream's own description of the cache is made from."""

    def __init__(self, manager: Any) -> None:
        runtime = manager.impl
        self.layer_grouping = runtime.layer_grouping
        self.init_config = manager.kv_cache_manager_py_config
        # One layer in each group, so a group is a layer.
        self.pools = [late.on_device((pool.slots, BYTES * len(ROLES)), torch.uint8) for pool in runtime.pools]
        self.all_buffer_ids = [
            SimpleNamespace(layer_id=group, role=role) for group in range(len(self.pools)) for role in ROLES
        ]

    @property
    def pool_group_descs(self) -> list[Any]:
        return [
            SimpleNamespace(
                num_slots=pool.shape[0],
                slot_desc=SimpleNamespace(variants=[SimpleNamespace(layer_group_id=group)]),
            )
            for group, pool in enumerate(self.pools)
        ]

    def get_aggregated_pages(self, buffer_ids: list[Any]) -> Iterator[Any]:
        """Key and value of a page lie side by side."""
        for group, pool in enumerate(self.pools):
            mine = [SimpleNamespace(id=each, expansion=1) for each in buffer_ids if each.layer_id == group]
            if mine:
                yield SimpleNamespace(
                    layer_group_id=group,
                    base=pool.data_ptr(),
                    size=pool.shape[1],
                    stride=pool.shape[1],
                    buffers=mine,
                )


def register(executor: Any) -> None:
    """Replaces `PyExecutor._maybe_init_kv_connector_manager`, whose excerpt knows of a single tensor only."""
    connector, manager = executor.kv_connector_manager, executor.kv_cache_manager
    if connector is None:
        return
    connector.worker.register_kv_cache_layout(import_module(LAYOUT).build_kv_cache_layout_v2(described(manager)))
    connector.wait_for_initialization()


def described(manager: Any) -> Any:
    """The manager, as upstream's own description of the cache looks at it."""
    return SimpleNamespace(
        impl=Memory(manager),
        tokens_per_block=manager.tokens_per_block,
        pp_layers=list(range(manager.num_pools)),
        get_replicated_roles=tuple,
    )
