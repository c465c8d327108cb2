"""Short words for the scenes that the guarantee tests set."""

from collections.abc import Sequence

from trtllm_kvfix import native
from trtllm_kvfix.native import BlockManager, BlockManagerConfig, SequenceRequest, block_hashes

BLOCK = 4  # tokens per block, wherever a test does not say otherwise
SEED = 0x0123456789ABCDEF_FEDCBA9876543210  # of every manager here, so that hashes and digests compare


def manager(primary: int, host: int = 0, **options: object) -> BlockManager:
    settings: dict[str, object] = {
        "tokens_per_block": BLOCK,
        "blocks_primary": primary,
        "blocks_host": host,
        "seed": SEED,
    }
    return BlockManager(BlockManagerConfig(**{**settings, **options}))  # type: ignore[arg-type]


def hashes(tokens: Sequence[int], **identity: object) -> list[int]:
    """The hashes of the prompt's full blocks, as a manager from above computes them."""
    request = SequenceRequest(1, tokens, **identity)  # type: ignore[arg-type]
    return block_hashes(request, manager(primary=1).config)


def prompt(family: int, length: int) -> list[int]:
    """Tokens that share no block with another family, and every prefix with a longer prompt of their own."""
    return [family * 1000 + position for position in range(length)]


def run_transfers(m: BlockManager) -> list[native.TransferItem]:
    """Takes what is queued and completes it, as if the copies had run."""
    batch = m.take_transfers()
    m.complete(batch.ticket)
    return batch.items


def begin(m: BlockManager, request_id: int, tokens: Sequence[int], **options: object) -> native.Admission:
    """A live sequence whose prompt has been computed and can be found by others."""
    admission = m.add_sequence(SequenceRequest(request_id, tokens, **options))  # type: ignore[arg-type]
    run_transfers(m)
    m.store_context_blocks(request_id, len(tokens))
    return admission


def leave_behind(m: BlockManager, request_id: int, tokens: Sequence[int], **options: object) -> None:
    """A sequence that came and went: its blocks are cached, the last one used the longest ago."""
    begin(m, request_id, tokens, **options)
    m.remove_sequence(request_id)


def blocks_of(m: BlockManager, request_id: int, window_size: int | None = None) -> list[int]:
    """The blocks that the sequence holds, each once."""
    return sorted({block for beam in m.get_cache_block_ids(request_id, window_size) for block in beam if block >= 0})


def leave_blocks_behind(m: BlockManager, request_id: int, tokens: Sequence[int]) -> list[int]:
    """As `leave_behind`. Returns the blocks, from the first."""
    begin(m, request_id, tokens)
    [blocks] = m.get_cache_block_ids(request_id)
    m.remove_sequence(request_id)
    return blocks


def push_to_host(m: BlockManager, request_id: int, blocks: int) -> None:
    """Evicts whatever is cached by a private sequence of that many blocks, and takes it away again."""
    m.add_sequence(SequenceRequest(request_id, prompt(900 + request_id, blocks * BLOCK)))
    run_transfers(m)
    m.remove_sequence(request_id, store=False)


def reusable(m: BlockManager, tokens: Sequence[int], **options: object) -> int:
    """Counts the tokens that would be reused of a prompt that begins with these, and goes on."""
    probe = SequenceRequest(10**9, [*tokens, 999_999_999], **options)  # type: ignore[arg-type]
    return m.analyze_prefix_reuse(probe).tokens


def tiers_of(m: BlockManager, tokens: Sequence[int]) -> list[str]:
    """Where each leading block is that a longer prompt would find, by nothing but what it is promised."""
    found: list[str] = []
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        reuse = m.analyze_prefix_reuse(SequenceRequest(10**9, [*tokens[:end], 999_999_999]))
        if reuse.tokens < end:
            break
        found.append("primary" if reuse.blocks_primary > found.count("primary") else "host")
    return found


def kinds(items: Sequence[native.TransferItem]) -> list[str]:
    return [item.kind for item in items]
