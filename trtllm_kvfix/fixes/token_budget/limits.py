"""Limits of an executor's forward step, read from the executor when it is complete."""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.fixes.batches import main_v1_manager
from trtllm_kvfix.fixes.token_budget.fitting import Limits
from trtllm_kvfix.log import log


def limits_of(executor: Any, is_safe: Callable[[Any], bool]) -> Limits | None:
    """The engine's own limit is the one that it asserts. None where batches must stay as they are; the log then says
    why.

    Where the cache is V2's, blocks are claimed before a batch is charged, so its charge holds.
    """
    manager = main_v1_manager(executor.resource_manager)
    if manager is None:
        return None
    engine = executor.model_engine
    max_num_tokens = getattr(engine, "max_num_tokens", None) or getattr(executor, "max_num_tokens", None)
    stages = getattr(getattr(executor, "dist", None), "pp_size", 1)
    why = ""
    if stages > 1:
        # One rank schedules and the others run what it sends; the loop has noted already who finishes its prompt.
        why = f"it has {stages} pipeline stages"
    elif max_num_tokens is None:
        why = "it does not show its max_num_tokens"
    elif not is_safe(manager.impl):
        why = "a prompt that is cut short would be offered for reuse whole, and computed-blocks is off"
    if why or max_num_tokens is None:
        log.warning("token-budget leaves the batches of this engine alone: %s", why)
        return None
    features = getattr(engine, "attn_runtime_features", None)
    return Limits(
        max_num_tokens=int(max_num_tokens),
        chunked_prefill=bool(getattr(features, "chunked_prefill", False)),
        tokens_per_block=int(manager.tokens_per_block),
        runtime_tokens=_runtime_tokens(executor, engine),
    )


def _runtime_tokens(executor: Any, engine: Any) -> Callable[[], int] | None:
    """Tokens of a generation with drafts, where the loop overlaps: the last step's sample, and its drafts, are taken
    from the device. The draft length may change from step to step. None without drafts, or without overlap."""
    if not getattr(engine, "enable_spec_decode", False) or getattr(executor, "disable_overlap_scheduler", False):
        return None
    widened = getattr(engine, "get_runtime_tokens_per_gen_step", None)
    if widened is None:
        return lambda: 1 + int(engine.runtime_draft_len)
    return lambda: int(widened(engine.runtime_draft_len))
