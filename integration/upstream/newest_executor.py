"""What the newest executor (era O) needs besides its own methods. Its steps with a connector are upstream's own there.

Upstream's constructor sets these, and no excerpt holds it. Nothing is drafted, encoded or disaggregated, and there is
one rank, so most of them are off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from integration.upstream import v2_memory
from integration.upstream.doubles import Idle

EXECUTOR = "tensorrt_llm._torch.pyexecutor"
LAYOUT = "build_kv_cache_layout_v2"
RUNTIME = "tensorrt_llm.runtime.kv_cache_manager_v2"
ITS_OWN = "_release_unused_connector_reservations"  # the step that shows that an executor does them all itself
IS_OFF = """
    enable_attention_dp enable_early_first_token_response enable_iter_perf_stats enable_joint_kv_cache_reuse
    enable_kv_cache_events enable_kv_pool_rebalance gather_all_responses has_previous_draft_tokens is_benchmark_disagg
    speculation_permanently_disabled use_spec_decode _is_warmup _mm_encoder_item_scheduling_enabled _profile_enabled
    _resource_governor_enabled _sample_on_execution_stream
"""
IS_NOT_THERE = "draft_kv_cache_manager draft_model_engine dwdp_manager llm_args"


def sets() -> dict[str, Any]:
    """What its constructor sets and the loops look at."""
    return {
        **dict.fromkeys(IS_OFF.split(), False),
        **dict.fromkeys(IS_NOT_THERE.split()),
        "control_requests": [],
        "disagg": Idle(),
        "max_draft_len": 0,
        "max_total_draft_tokens": 0,
        "_is_kv_manager_v2": True,
        "_pending_recompute_pause_ids": set(),
    }


class Fetch:
    """Put on the instance. Upstream's fetch, which no excerpt holds, applies with the requests which loads are over."""

    def _fetch_and_activate_new_requests(self: Any) -> list[Any]:
        if self.kv_connector_manager is not None:
            self.kv_connector_manager.finish_prefix_loads(self.kv_connector_manager.take_finished_prefix_loads())
        found: list[Any] = type(self)._fetch_and_activate_new_requests(self)
        return found


@contextmanager
def registering(manager: Any) -> Iterator[None]:
    """Upstream's own registration of a connector sees pages that lie in memory of our device."""
    tier = import_module(RUNTIME).CacheTier
    tiers = [tier.GPU_MEM, *([tier.HOST_MEM] if manager.has_cache_tier_below_gpu else [])]
    manager.impl.init_config = SimpleNamespace(cache_tiers=[SimpleNamespace(tier=each) for each in tiers])
    module = import_module(f"{EXECUTOR}.py_executor")
    layout = import_module(v2_memory.LAYOUT).build_kv_cache_layout_v2
    with mock.patch.object(module, LAYOUT, lambda manager: layout(v2_memory.described(manager))):
        yield
