"""What a manager of blocks promises to a prompt, without admitting it."""

from collections.abc import Sequence

from trtllm_kvfix import native

UNHEARD = 2**31 - 1  # no prompt has this token


def whole_blocks(core: native.BlockManager, tokens: Sequence[int]) -> tuple[int, int]:
    """How many are in primary and in the host tier. A block of which only the first tokens fit does not count."""
    found = core.analyze_prefix_reuse(native.SequenceRequest(0, [*tokens, UNHEARD]))
    if part := found.tokens % core.config.tokens_per_block:
        found = core.analyze_prefix_reuse(native.SequenceRequest(0, [*tokens[: found.tokens - part], UNHEARD]))
    return found.blocks_primary, found.blocks_host
