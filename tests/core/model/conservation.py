"""The model's own conscience: what must hold between any two calls."""

from .chunks import there, to_come
from .state import Block, State, Window
from .values import TIERS, Tier


def slot_state(block: Block, tier: Tier) -> str:
    if block.in_flight[tier]:
        return "in_flight"
    return "owned" if block.held(tier) else "cached"


def tier_counts(window: Window, tier: Tier) -> dict[str, int]:
    counts = {"free": window.free(tier), "cached": 0, "owned": 0, "in_flight": 0}
    for block in window.blocks:
        if block.slots[tier] is not None:
            counts[slot_state(block, tier)] += 1
    return counts


def check(state: State) -> None:
    locks = count_locks(state)
    owners, keepers = count_owners(state, suspended=False), count_owners(state, suspended=True)
    check_kept(state)
    for window in state.windows:
        for tier in TIERS:
            counts = tier_counts(window, tier)
            assert sum(counts.values()) == window.capacity(tier) and min(counts.values()) >= 0, (tier, counts)
        tree = window.tree()
        assert len({b.serial for b in tree}) == len(tree)
        assert {b.serial for b in tree} == {b.serial for b in window.blocks if b.in_tree}
        slots = [(tier, b.slots[tier]) for b in window.blocks for tier in TIERS if b.slots[tier] is not None]
        assert len(set(slots)) == len(slots)
        for block in window.blocks:
            assert block.refs == owners.get(block.serial, 0), "an owner is missing or one too many"
            assert block.keepers == keepers.get(block.serial, 0), "a suspended sequence is missing or one too many"
            assert block.claims == 0, "a claim outlived its batch"
            for tier in TIERS:
                assert block.locks[tier] == locks.get((block.serial, tier), 0)
            check_block(state, block)


def check_kept(state: State) -> None:
    for w, window in enumerate(state.windows):
        pinned = sum(b.pins["primary"] > 0 or b.locks["primary"] > 0 or b.kept("primary") for b in window.blocks)
        assert there(state, w) + pinned >= 0, "slots are kept that are not there"
    for seq in state.sequences.values():
        for room in seq.rooms:
            assert room.kept <= to_come(state, seq) and (room.rolls == (room.kept < to_come(state, seq)))


def check_block(state: State, block: Block) -> None:
    assert any(slot is not None for slot in block.slots.values()), "a record without a slot"
    for tier in TIERS:
        holds = block.slots[tier] is not None
        assert holds or not (block.in_flight[tier] or block.pins[tier] or block.locks[tier]), "held, but no slot"
        assert not holds or block.in_tree or block.held(tier), "a private slot that nothing holds was not freed"
    cached = block.in_tree and block.slots["primary"] is not None and not block.held("primary")
    assert cached == (block.cached_at is not None)
    assert block.refs == 0 or block.slots["primary"] is not None, "an owned block must be in primary"
    if block.in_tree:
        size = state.config.tokens_per_block
        assert 1 <= len(block.tokens) <= size
        assert len(block.tokens) == size or not block.children, "an incomplete block has children"
        assert block.parent is not None
        contents = [(c.tokens, c.extras) for c in block.parent.children]
        assert len(set(contents)) == len(contents), "twins"
        assert not block.undelivered, "half a block is served"


def count_locks(state: State) -> dict[tuple[int, Tier], int]:
    pending = state.queued + [item for items in state.tickets.values() for item in items]
    counts: dict[tuple[int, Tier], int] = {}
    for item in pending:
        if item.kind != "offload":
            key = (item.source.serial, item.tier_source)
            counts[key] = counts.get(key, 0) + 1
    return counts


def count_owners(state: State, suspended: bool) -> dict[int, int]:
    counts: dict[int, int] = {}
    for seq in (seq for seq in state.sequences.values() if seq.suspended == suspended):
        for block in seq.held_blocks():
            counts[block.serial] = counts.get(block.serial, 0) + 1
    return counts
