"""Methods of upstream's newest V2 manager that is stored (era N), over the stand-in's table, index mapper and launch.

They create, resume, grow, commit, suspend and free the caches of a runtime, and launch the copy of its rows; on demand
they drive a connector. What they call besides is ours, and small. There is no draft model and no context parallelism.
"""

import enum
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from integration.upstream import newest_loops
from integration.upstream.doubles import does_nothing
from integration.upstream.newest_loops import methods
from integration.upstream.v2_methods import rewind_context_after_cache_drop, settle_context_cursor
from integration.upstream.v2_runtime import BAD_PAGE
from tests.standin.serving import PYEXECUTOR
from tests.torture.v2_books import SLIDING, Books, LentCache

PATH = "tensorrt_llm/_torch/pyexecutor/kv_cache/kv_cache_manager_v2.py"
ERA = "N"
LAUNCH = "copy_batch_block_offsets"
# Where upstream drives a connector. Excerpts may hold these or not, and the stand-in has two of its own.
CONNECTOR = (
    "prepare_resources", "report_batch_to_connector", "release_unused_connector_reservations", "resize_context",
    "get_page_indices_by_layer_group", "_connector_may_serve", "_prepare_connector_prefix_reservation",
)  # fmt: skip
NEEDED = ("prepare_context", "try_allocate_generation", "suspend_request", "update_resources", "free_resources", LAUNCH)
# What runs of upstream's. The excerpts may hold more, such as statistics and what warms an engine up.
RUN = (
    *NEEDED, *CONNECTOR, "_accept_connector_prefix_reservations", "_apply_connector_matched_prefix",
    "_connector_reservations_enabled", "_context_reuse_tokens", "_create_kv_cache", "_derive_reuse_salt",
    "_draft_context_exceeds_limit", "_life_cycle_by_layer_group", "_mark_connector_prefix_populated",
    "_record_branch_snapshot_point", "_reserve_connector_prefix", "_resize_context_history",
    "_resize_for_connector_prefix", "_restore_page_index_bufs", "_resume_and_restore", "_run_kv_connector_hooks",
    "_stale_block_range", "extend_capacity_for_tokens", "get_history_length", "prepare_context_cache",
    "probe_context_reuse", "probe_first_new_block_key", "probe_prefix_match_length", "release_index_slot",
    "resume_request", "revert_allocate_context", "revert_allocate_generation", "try_commit_blocks",
    "update_context_resources",
)  # fmt: skip


def source_in(folder: Path | None) -> str:
    return newest_loops.source_in(folder, PATH, ERA)


@contextmanager
def newest_manager(source: str, *, connected: bool = False) -> Iterator[None]:
    """Inside the stand-in, before a manager is made."""
    module = import_module(f"{PYEXECUTOR}.kv_cache.kv_cache_manager_v2")
    kind, request = module.KVCacheManagerV2, import_module(f"{PYEXECUTOR}.llm_request").LlmRequest
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(vars(module), _globals()))
        theirs = methods(source, PATH, vars(module), RUN)  # among the names in which a fix replaces the kernel
        assert set(NEEDED) <= theirs.keys(), f"the excerpts lack {set(NEEDED) - theirs.keys()}"
        assert not connected or set(CONNECTOR) <= theirs.keys(), f"the excerpts lack {set(CONNECTOR) - theirs.keys()}"
        ours = _beside(kind)
        for name in CONNECTOR:
            (ours if connected else theirs).pop(name, None)
        if import_module("tensorrt_llm._standin.variant").STEP_PROLOGUE_TRIM:
            del theirs[LAUNCH]  # no source that asks the filter is stored
        for owner, names in [(kind, theirs), (kind, ours), (request, REQUESTS), (Books, BOOKS)]:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


class BlockReusePolicy(enum.Enum):
    ALL_REUSABLE = 0
    PER_REQUEST = 1


class ReuseScope(NamedTuple):
    lora_id: int | None
    salt: int | None


def _globals() -> dict[str, Any]:
    return {
        "AttnLifeCycle": type(SLIDING[0]),
        "BAD_PAGE_INDEX": BAD_PAGE,
        "BlockReusePolicy": BlockReusePolicy,
        "LlmRequestState": import_module(f"{PYEXECUTOR}.llm_request").LlmRequestState,
        "ReuseScope": ReuseScope,
        "_settle_context_cursor": settle_context_cursor,
        "_update_kv_cache_draft_token_location": does_nothing,
        "get_draft_token_length": lambda request: len(request.py_draft_tokens),
        "hashlib": hashlib,
        "logger": logging.getLogger("tensorrt_llm"),
        "nvtx_range": lambda _: lambda method: method,
        "os": os,
        "rewind_context_after_cache_drop": rewind_context_after_cache_drop,
        "torch": SimpleNamespace(Tensor=object),  # local names are annotated with it
    }


IS_OFF = """
    enable_stats is_estimating_kv_cache is_vswa kv_compression_manages_history _has_cp_helix
"""


def _beside(kind: Any) -> dict[str, Any]:
    original: Callable[..., None] = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  it is put on the class
        original(self, *args, **kwargs)
        self._allocated_draft_lens, self._fresh_pages_filled, self._disagg_receive_ready = {}, {}, {}
        self._early_freed_index_requests, self._request_stats_enabled_ids = set(), set()

    return {
        **dict.fromkeys(IS_OFF.split(), False),
        "__init__": __init__,
        "block_reuse_policy": BlockReusePolicy.ALL_REUSABLE,
        "conversation_manager": None,
        "draft_layer_ids": (),
        "kv_cache_manager_py_config": SimpleNamespace(layers=SLIDING),
        "num_extra_kv_tokens": 0,
        "enable_block_reuse": True,
        "reuse_match_backoff": 0,
        "_augment_tokens_for_block_reuse": lambda _, tokens, *__, start=0, end=None: tokens[start:end],
        "_can_publish_block_reuse": True,
        "_connector_life_cycle_by_group": None,
        "_connector_may_serve": lambda *_: False,
        "_fill_fresh_kv_pages": does_nothing,
        "_generation_draft_slots": lambda _, request: len(request.py_draft_tokens),
        "_log_window_crossing": does_nothing,
        "_prepare_connector_prefix_reservation": does_nothing,
        "_standalone_draft_reserve": 0,
        "_reuse_token_source": lambda _, request: request.get_tokens(0)[: request.prompt_len],
    }


REQUESTS = {
    "max_beam_num_tokens": property(lambda self: len(self.get_tokens(0))),
    "py_connector_allocation_reported": False,
    "py_connector_served_position": 0,
    "py_ctx_pre_resize_cap": None,
    "py_num_accepted_draft_tokens": 0,
    "return_perf_metrics": False,
}


class ManagedCache(LentCache):
    """A cache of the runtime as upstream's manager calls it, and as the attack does."""

    enable_swa_scratch_reuse = False
    cuda_stream: Any = None
    discard_pending_stats = drop_cached_token_attribution = does_nothing

    def resize(self, capacity: int | None, history: int | None = None) -> bool:
        return bool(self._cache.resize(capacity, history))

    def commit(self, computed: int | Sequence[int]) -> None:
        if isinstance(computed, int):
            super().commit(computed)
        else:
            self._cache.commit(list(computed))

    def stop_committing(self) -> None:
        self._cache.stop_committing()

    def get_aggregated_page_indices(self, group: int, *, valid_only: bool) -> Iterator[int]:
        return self._cache.get_aggregated_page_indices(group, valid_only=valid_only)  # type: ignore[no-any-return]


def _create(self: Books, scope: ReuseScope, tokens: Sequence[int], id: int, **_: Any) -> ManagedCache:
    prompt = list(tokens)
    cache = self.levels.runtime.create_kv_cache(scope.salt, prompt)
    self.caches[id] = made = ManagedCache(cache, prompt, self.tokens_per_block, lambda: self.caches.pop(id))
    return made


BOOKS = {
    "create_kv_cache": _create,
    "layer_grouping": [[group] for group in range(len(SLIDING))],
    "clear_stats_excluded": does_nothing,
    "mark_stats_excluded": does_nothing,
    "probe_reuse": lambda self, scope, tokens: self.levels.runtime.probe_reuse(scope.salt, tokens),
}
