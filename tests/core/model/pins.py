"""Section 8: a pin holds a block's slot in one tier."""

from .state import Block, Sequence, State
from .values import TIERS, BlockInFlight, Tier


def pin(state: State, block: Block, tier: Tier) -> None:
    block.pins[tier] += 1
    state.refresh(block)


def pin_sequence(state: State, seq: Sequence) -> list[Block]:
    """Pins each held block once, in primary."""
    blocks = list({block.serial: block for block in seq.held_blocks()}.values())
    if any(block.in_flight["primary"] for block in blocks):
        raise BlockInFlight
    for block in blocks:
        pin(state, block, "primary")
    return blocks


def tier_to_pin(block: Block) -> Tier:
    for tier in TIERS:
        if block.settled(tier):
            if tier == "host" and not block.in_tree and block.pins["host"] == 0:
                raise ValueError("in host for its owner or a transfer alone")
            return tier
    if any(block.in_flight.values()):
        raise BlockInFlight
    raise ValueError(f"block {block.serial} holds nothing")


def pin_blocks(state: State, blocks: list[Block]) -> list[Tier]:
    tiers = [tier_to_pin(block) for block in blocks]
    for block, tier in zip(blocks, tiers, strict=True):
        pin(state, block, tier)
    return tiers


def unpin_blocks(state: State, blocks: list[Block], tier: Tier | None) -> None:
    left = {block.serial: dict(block.pins) for block in blocks}
    chosen = [(block, tier_to_unpin(left[block.serial], tier)) for block in blocks]
    for block, where in chosen:
        block.pins[where] -= 1
        state.refresh(block)


def tier_to_unpin(pins: dict[Tier, int], tier: Tier | None) -> Tier:
    """Takes one pin away from `pins`."""
    pinned = [t for t in TIERS if pins[t] > 0]
    if tier is None and len(pinned) == 2:
        raise ValueError("pinned in both tiers: say which")
    where = tier or (pinned[0] if pinned else "primary")
    if pins[where] == 0:
        raise ValueError(f"not pinned in {where}")
    pins[where] -= 1
    return where
