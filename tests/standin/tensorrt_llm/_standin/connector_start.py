"""These calls of a connector come before the loop starts (surface 6.2)."""

from typing import Any

from .._torch.modules.decoder_layer import DecoderLayer
from .variant import since


def start(kv_connector_manager: Any, model: Any, kv_cache_manager: Any) -> None:
    _register(kv_connector_manager, kv_cache_manager)
    for _, module in model.named_modules():
        if isinstance(module, DecoderLayer):
            module.register_forward_pre_hook(kv_connector_manager.layer_pre_hook)
            module.register_forward_hook(kv_connector_manager.layer_post_hook)
    if since("D"):
        kv_connector_manager.wait_for_initialization()


def _register(kv_connector_manager: Any, kv_cache_manager: Any) -> None:
    """A pool, or where the manager has layer groups, their layout."""
    layout = getattr(kv_cache_manager, "get_kv_cache_layout", None)
    if layout is None:
        kv_connector_manager.worker.register_kv_caches(kv_cache_manager.get_unique_primary_pool())
        return
    kv_connector_manager.reject_flat_only_scheduler(kv_cache_manager.num_pools)
    kv_connector_manager.worker.register_kv_cache_layout(layout())
