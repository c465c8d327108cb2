"""The reuse tree as a router knows it: rebuilt from nothing but the events."""

from collections import Counter

from trtllm_kvfix import native

from .model import Block
from .model.block_hash import hash_block, hash_root
from .model.state import Root, State
from .scenes import SEED

Entry = tuple[int | None, tuple[int, ...], int | None, str, int]  # parent hash, tokens, lora id, tier, priority
Key = tuple[int | None, int]  # window size, hash


def hash_of(block: Block, hash_bits: int) -> int:
    return whole_hash(block) & ((1 << hash_bits) - 1)


def whole_hash(block: Block) -> int:
    parent = block.parent
    assert parent is not None
    parent_hash = whole_hash(parent) if isinstance(parent, Block) else prefix_hash(parent)
    return hash_block(SEED, parent_hash, block.tokens, block.extras)


def prefix_hash(root: Root) -> int:
    above = hash_root(SEED, root.key)
    for tokens, extras in root.before:
        above = hash_block(SEED, above, tokens, extras)
    return above


def full_blocks(state: State) -> list[tuple[int | None, Block]]:
    size = state.config.tokens_per_block
    return [(w.shape.size, block) for w in state.windows for block in w.tree() if len(block.tokens) == size]


class EventMirror:
    def __init__(self, hash_bits: int) -> None:
        self.hash_bits = hash_bits
        self.entries: dict[Key, Entry] = {}
        self.counts: Counter[Key] = Counter()
        self.events_seen = 0

    def follow(self, events: list[native.BlockEvent], dropped: int) -> None:
        for event in events:
            key = (event.window_size, event.block_hash)
            assert event.event_id == self.events_seen + dropped, "ids count up; a gap is what was dropped"
            self.events_seen += 1
            self.counts[key] += {"stored": 1, "removed": -1, "updated": 0}[event.kind]
            if dropped or self.hash_bits < 128:
                continue
            self.follow_entry(event, key)

    def follow_entry(self, event: native.BlockEvent, key: Key) -> None:
        assert (event.kind == "stored") == (key not in self.entries)
        if event.kind == "removed":
            assert event.tier == self.entries.pop(key)[3], "it goes from the tier where it was"
            return
        before = self.entries.get(key)
        tokens, lora_id = (before[1], before[2]) if before else (tuple(event.tokens), event.lora_id)
        assert event.kind == "stored" or not event.tokens
        after = (event.parent_hash, tokens, lora_id, event.tier, event.priority)
        assert after != before, "an update that changes nothing"
        self.entries[key] = after

    def compare(self, state: State) -> None:
        """Only while no event has been dropped."""
        expected: Counter[Key] = Counter((size, hash_of(block, self.hash_bits)) for size, block in full_blocks(state))
        assert +self.counts == expected
        if self.hash_bits == 128:
            full = full_blocks(state)
            assert self.entries == {(size, hash_of(block, 128)): self.entry(block) for size, block in full}

    def entry(self, block: Block) -> Entry:
        tier = "host" if block.slots["primary"] is None else "primary"
        parent, above = block.parent, block.parent
        while isinstance(above, Block):
            above = above.parent
        assert above is not None
        parent_hash = whole_hash(parent) if isinstance(parent, Block) else None
        if isinstance(parent, Root) and parent.before:
            parent_hash = prefix_hash(parent)
        return parent_hash, block.tokens, above.key[0], tier, block.priority
