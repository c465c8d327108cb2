"""Makes managers and requests of any era with the arguments that matter to a test."""

from collections.abc import Sequence
from typing import Any

TOKENS_PER_BLOCK = 4
WINDOW = 64
# The eras that store the whole prompt, computed or not.
WHOLE_PROMPT = ("A", "S")


def name_of(era: Any) -> str:
    return str(era.__name__).rpartition(".")[2]


def manager_keywords(era: Any, blocks: int, host: int) -> dict[str, Any]:
    """The keywords for one full window, for the constructor of any era. The caller adds those of a head."""
    return {
        "tokens_per_block": TOKENS_PER_BLOCK,
        "blocks_per_window": {WINDOW: (blocks, host)},
        "max_num_sequences": 8,
        "max_beam_width": 1,
        "max_attention_window_vec": [WINDOW],
        "temp_attention_window_inputs": None,
        "dtype": era.DataType.HALF,
        "sink_token_length": 0,
        "stream": 0,
        "max_sequence_length": WINDOW,
        "enable_block_reuse": True,
    }


def make_manager(era: Any, blocks: int = 16, host: int = 0, **changes: Any) -> Any:
    """A manager of two layers and one full window; `changes` are keywords of the constructor."""
    arguments = {"num_kv_heads_per_layer": [2, 2], **manager_keywords(era, blocks, host)}
    if name_of(era) == "S":
        arguments["size_per_head_per_layer"] = [8, 8]
    else:
        arguments["size_per_head"] = 8
    return era.KVCacheManager(**(arguments | changes))


def make_request(era: Any, request_id: int, tokens: Sequence[int], base: Any = None, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "request_id": request_id,
        "max_new_tokens": 8,
        "input_tokens": list(tokens),
        "sampling_config": era.SamplingConfig(),
        "is_streaming": False,
    }
    return (base or era.LlmRequest)(**(arguments | changes))


def add(manager: Any, *requests: Any, beams: int = 1) -> None:
    """Adds the requests as the manager's era does: one by one, or as one batch."""
    if hasattr(manager, "add_sequence_batch"):
        manager.add_sequence_batch([(r.request_id, r.prompt_len, beams) for r in requests], list(requests))
        return
    for request in requests:
        manager.add_sequence(request.request_id, request.prompt_len, beams, request)


def finish_prompt(era: Any, request: Any, token: int = 9_000) -> None:
    """Report the prompt's last chunk as an executor does after its forward pass."""
    request.move_to_next_context_chunk()
    request.state = era.LlmRequestState.GENERATION_IN_PROGRESS
    request.add_new_token(token, 0)


def unique(era: Any, tokens: Sequence[int]) -> Any:
    """Bound tokens; no request of A and S hands them out, but a key does."""
    return era.BlockKey(tokens=list(tokens)).unique_tokens
