"""The picture of H3: one cache, two requests, admitted one by one and as a batch, as the block manager decides it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.docs.svg import LINE, MARGIN, picture, text
from trtllm_kvfix.native import BlockManager, BlockManagerConfig, SequenceRequest

TOKENS, SLOTS = 4, 6  # of a block, of the cache
SHARED, OTHER = list(range(100, 108)), list(range(200, 208))
FIRST, SECOND = list(range(300, 312)), [*SHARED, 1, 2]
SIDE, GAP, LEFT = 92, 10, 180


@dataclass(frozen=True)
class Outcome:
    slots: list[tuple[str, str]]  # what lies in each slot, and how it is drawn
    reused: int


def cached() -> BlockManager:
    """The prefix that the second request wants is the oldest in the cache."""
    manager = BlockManager(
        BlockManagerConfig(tokens_per_block=TOKENS, blocks_primary=SLOTS, partial_reuse=False, seed=1)
    )
    for request_id, tokens in ((1, SHARED), (2, OTHER)):
        manager.add_sequence(SequenceRequest(request_id, [*tokens, 0]))
        manager.remove_sequence(request_id, tokens=[*tokens, 0], computed=len(tokens))
    return manager


def admitted(*batches: Sequence[SequenceRequest]) -> Outcome:
    manager = cached()
    results = [each for batch in batches for each in manager.add_sequence_batch(list(batch)).admitted]
    reused = {each.request_id: each.tokens_reused for each in results}[4]
    slots = [("cached", "")] * SLOTS
    for request_id, name in ((3, "A"), (4, "B")):
        kept = reused // TOKENS if request_id == 4 else 0
        ids = manager.get_cache_block_ids(request_id)[0]
        places = [slot for slot, _ in manager.pin_blocks_by_id(ids)]
        for number, slot in enumerate(places):
            slots[slot] = (f"{name}: reused", "kept") if number < kept else (f"{name}: computes", "new")
    return Outcome(slots, reused)


def row(y: float, name: str, found: Sequence[tuple[str, str]]) -> list[str]:
    parts = [text(LEFT - 16, y + 27, name, "title", "end")]
    for number, (words, kind) in enumerate(found):
        x = LEFT + number * (SIDE + GAP)
        parts.append(f'<rect class="slot {kind}" x="{x}" y="{y:g}" width="{SIDE}" height="44" rx="4"/>')
        parts.append(text(x + SIDE / 2, y + 26, words, "", "middle"))
    return parts


def drawn() -> str:
    first, second = SequenceRequest(3, FIRST), SequenceRequest(4, SECOND)
    one_by_one, batch = admitted([first], [second]), admitted([first, second])
    before = [("B's prefix", "kept")] * 2 + [("of others", "")] * 2 + [("free", "")] * 2
    y = 30.0
    parts = [
        text(MARGIN, y, f"A needs three blocks, B has a cached prefix of {len(SHARED)} tokens, the oldest", "title")
    ]
    parts += row(y + 20, "before", before)
    for name, outcome in (("one by one", one_by_one), ("as a batch", batch)):
        y += 76
        parts += row(y + 20, name, outcome.slots)
        kind = "right-text" if outcome.reused == len(SHARED) else "wrong-text"
        words = f"B finds {outcome.reused} of {len(SHARED)} tokens and computes {len(SECOND) - outcome.reused}"
        parts.append(text(LEFT, y + 20 + 44 + LINE, words, kind))
        y += 12
    note = "As the block manager of this package decides it; the scheduler had counted on 8 tokens."
    y += 20 + 44 + 3 * LINE
    return picture(
        LEFT + SLOTS * (SIDE + GAP) + MARGIN,
        y + MARGIN,
        "H3: reuse that evaporates during admission",
        [*parts, text(MARGIN, y, note, "soft")],
    )
