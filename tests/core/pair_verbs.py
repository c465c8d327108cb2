"""The calls of a pair beside admission, growth, pins and transfers."""

import dataclasses

from trtllm_kvfix import native

from .model import Request
from .native_values import native_request
from .pair import Pair, free_blocks


def suspend(pair: Pair, request_id: int) -> bool:
    got = pair.both(lambda: pair.model.suspend_sequence(request_id), lambda: pair.core.suspend_sequence(request_id))
    assert got is None or got[0] == got[1]
    return got is not None


def resume(pair: Pair, request_id: int) -> bool:
    asked = pair.both(lambda: pair.model.blocks_to_resume(request_id), lambda: pair.core.blocks_to_resume(request_id))
    free = free_blocks(pair.core)
    got = pair.both(lambda: pair.model.resume_sequence(request_id), lambda: pair.core.resume_sequence(request_id))
    if got is not None:
        assert asked is not None and asked[0] == asked[1] and got[0] == got[1]
        assert [before - taken for before, taken in zip(free, asked[1], strict=True)] == free_blocks(pair.core)
    return got is not None


def decode_together(pair: Pair, ids: list[int]) -> None:
    """Makes a batch, which changes nothing. The model looks every sequence up in each step."""
    got = pair.both(lambda: list(pair.model.named_once(ids)), lambda: pair.core.decode_batch(ids))
    if got is not None:
        pair.decoding = got[1]


def decode(pair: Pair, tokens: list[int] | None, *, computed: bool) -> None:
    batch = pair.decoding
    if batch is None:
        return
    ids = batch.request_ids
    live = pair.model.state.sequences
    lengths = [live[each].length if each in live else 0 for each in ids] if computed else None
    values = None if tokens is None else (tokens * len(ids))[: sum(beyond_prompt(pair, each, 1) for each in ids)]
    pair.both(
        lambda: pair.model.add_tokens(ids, [1] * len(ids), values, lengths),
        lambda: batch.add_tokens(values, computed=computed),
    )


def beyond_prompt(pair: Pair, request_id: int, count: int) -> int:
    """Those of the next positions that lie behind the prompt."""
    live = pair.model.state.sequences.get(request_id)
    prompt, length = (len(live.request.tokens), live.length) if live else (0, 0)
    return max(length + count, prompt) - max(length, prompt)


def truncate(pair: Pair, request: Request, tokens_kept: int) -> None:
    got = pair.both(
        lambda: pair.model.truncate_blocks(request, tokens_kept),
        lambda: pair.core.truncate_blocks(native_request(request), tokens_kept),
    )
    assert got is None or got[0] == got[1]


def check_hashes(pair: Pair, request_id: int) -> None:
    """Those of a request with everything that is known as its prompt."""
    seq = pair.model.any_sequence(request_id)
    whole = native_request(dataclasses.replace(seq.request, tokens=tuple(seq.known)))
    digest = pair.core.digest()
    assert pair.core.commit_and_get_block_hashes(request_id) == native.block_hashes(whole, pair.core.config)
    assert pair.core.digest() == digest, "naming blocks changed something"
