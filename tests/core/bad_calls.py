"""Calls that must be refused, each with what it raises. None may change anything, whatever the manager holds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from trtllm_kvfix import native

Manager = native.BlockManager
Errors = type[Exception] | tuple[type[Exception], ...]
NOTHING: Any = None
UNHEARD = 10**15  # no request, block or ticket has this number


def request(request_id: int, *, beam_width: int = 1) -> native.SequenceRequest:
    return native.SequenceRequest(request_id, [1, 2, 3], beam_width=beam_width)


def table(m: Manager, *, rows: int = 1, blocks: int = 64) -> np.ndarray:
    return np.zeros((len(m.get_kv_cache_stats().windows), rows, 2, blocks), dtype=np.int32)


def first_window(m: Manager) -> int | None:
    return m.get_kv_cache_stats().windows[0].window_size


# The id that these calls name is not live, unless they say so.
BAD_CALLS: dict[str, tuple[Errors, Callable[[Manager], object]]] = {
    "add, id twice": (ValueError, lambda m: m.add_sequence_batch([request(UNHEARD), request(UNHEARD)])),
    "add, too many beams": (ValueError, lambda m: m.add_sequence(request(UNHEARD, beam_width=99))),
    "add, second of two is bad": (
        ValueError,
        lambda m: m.add_sequence_batch([request(UNHEARD), request(UNHEARD + 1, beam_width=99)]),
    ),
    "add, negative budget": (ValueError, lambda m: m.add_sequence_batch([request(UNHEARD)], tokens_new_max=-1)),
    "add, not requests": (TypeError, lambda m: m.add_sequence_batch([NOTHING])),
    "add, None": (TypeError, lambda m: m.add_sequence(NOTHING)),
    "grow, unknown": (native.UnknownRequest, lambda m: m.add_token(UNHEARD)),
    "grow, negative count": (ValueError, lambda m: m.add_token(UNHEARD, -1)),
    "grow, lengths differ": (ValueError, lambda m: m.add_tokens([UNHEARD], [1, 2])),
    "decode, unknown": (native.UnknownRequest, lambda m: m.decode_batch([UNHEARD])),
    "decode, float ids": (TypeError, lambda m: m.decode_batch([1.0])),
    "decode, values for nobody": (ValueError, lambda m: m.decode_batch([]).add_tokens([1])),
    "grow, float counts": (TypeError, lambda m: m.add_tokens([UNHEARD], [1.0])),
    "grow, fewer computed than ids": (ValueError, lambda m: m.add_tokens([], [], computed=[1])),
    "grow, negative computed": (ValueError, lambda m: m.add_token(UNHEARD, computed=-1)),
    "remove, negative computed": (ValueError, lambda m: m.remove_sequence(UNHEARD, computed=-1)),
    "rewind, unknown": (native.UnknownRequest, lambda m: m.rewind_kv_cache(UNHEARD, 0)),
    "store, unknown": (native.UnknownRequest, lambda m: m.store_context_blocks(UNHEARD, 0)),
    "remove, unknown": (native.UnknownRequest, lambda m: m.remove_sequence(UNHEARD)),
    "hashes, unknown": (native.UnknownRequest, lambda m: m.commit_and_get_block_hashes(UNHEARD)),
    "truncate, more than there is": (ValueError, lambda m: m.truncate_blocks(request(9), 4)),
    "truncate, negative": (ValueError, lambda m: m.truncate_blocks(request(9), -1)),
    "suspend, unknown": (native.UnknownRequest, lambda m: m.suspend_sequence(UNHEARD)),
    "resume, unknown": (native.UnknownRequest, lambda m: m.resume_sequence(UNHEARD)),
    "to resume, unknown": (native.UnknownRequest, lambda m: m.blocks_to_resume(UNHEARD)),
    "pin, no such block": (ValueError, lambda m: m.pin_blocks_by_id([UNHEARD])),
    "pin, negative": (ValueError, lambda m: m.pin_blocks_by_id([-1])),
    "unpin, no such block": (ValueError, lambda m: m.unpin_blocks_by_id([UNHEARD])),
    "unpin, no such tier": (ValueError, lambda m: m.unpin_blocks_by_id([], tier="disk")),
    "ids, unknown": (native.UnknownRequest, lambda m: m.get_cache_block_ids(UNHEARD, first_window(m))),
    "ids, no such window": (ValueError, lambda m: m.get_batch_cache_block_ids([], window_size=12345)),
    "offsets, unknown": (native.UnknownRequest, lambda m: m.copy_batch_block_offsets(table(m), [UNHEARD], 1, 0)),
    "offsets, rows end": (ValueError, lambda m: m.copy_batch_block_offsets(table(m), [UNHEARD, UNHEARD], 1, 0)),
    "offsets, int64": (
        TypeError,
        lambda m: m.copy_batch_block_offsets(table(m).astype(np.int64), [], 1, 0),
    ),
    "complete, unknown": (ValueError, lambda m: m.complete(UNHEARD)),
    "fail, unknown": (ValueError, lambda m: m.fail(UNHEARD)),
    "time, negative": (ValueError, lambda m: m.advance_time(-1)),
    "time, too late for durations": (ValueError, lambda m: m.advance_time(2**62 + 1)),
    "stats, unknown": (native.UnknownRequest, lambda m: m.get_request_stats(UNHEARD)),
    "to admit, None": (TypeError, lambda m: m.blocks_to_admit(NOTHING)),
    "to grow, unknown": (native.UnknownRequest, lambda m: m.blocks_to_grow([UNHEARD], [1])),
    "to grow, lengths differ": (ValueError, lambda m: m.blocks_to_grow([UNHEARD], [])),
    "to grow, id twice": (ValueError, lambda m: m.blocks_to_grow([UNHEARD, UNHEARD], [1, 1])),
    "without, unknown": (native.UnknownRequest, lambda m: m.free_blocks_without([UNHEARD])),
    "without, id twice": (ValueError, lambda m: m.free_blocks_without([UNHEARD, UNHEARD])),
    "length, unknown": (native.UnknownRequest, lambda m: m.get_token_count(UNHEARD)),
    "removed, unknown": (native.UnknownRequest, lambda m: m.get_num_front_blocks_removed(UNHEARD, first_window(m))),
    "removed, no such window": (ValueError, lambda m: m.get_num_front_blocks_removed(UNHEARD, 12345)),
    "priority, no such block": (ValueError, lambda m: m.get_priority_by_block_id(UNHEARD)),
    "analyze, None": (TypeError, lambda m: m.analyze_prefix_reuse(NOTHING)),
}
