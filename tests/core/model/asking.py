"""What a scheduler asks before it decides. Everything here only reads."""

from .admission import Plan, slots_new
from .growth import columns_missing
from .state import Block, Sequence, State


def blocks_to_admit(state: State, plan: Plan, tokens_new_max: int) -> list[int]:
    """Per window, for a plan that has been made to fit: what leaves the free and cached blocks for this request."""
    size = state.config.tokens_per_block
    length = len(plan.request.tokens)
    grown = -(-(length + tokens_new_max) // size) - -(-length // size)
    return [
        slots_new(plan, w) + lifted(state, plan, w) + grown * plan.request.beam_width for w in range(len(state.windows))
    ]


def lifted(state: State, plan: Plan, w: int) -> int:
    """Blocks that were cached, and those that come up from host."""
    window = state.windows[w]
    taken = plan.held(window, w) + ([plan.source(w)] if plan.rest and plan.ways[w] != "onboard" else [])
    cached = {block.serial for block in taken if block in window.cached()}
    onboarded = {block.serial for block in plan.held(window, w) if block.slots["primary"] is None}
    return len(cached) + len(onboarded)


def blocks_to_grow(state: State, sequences: list[Sequence], counts: list[int]) -> int:
    """Of each window: they all have a position's block, so any of them tells."""
    pairs = zip(sequences, counts, strict=True)
    return sum(columns_missing(state, seq, 0, count) * seq.request.beam_width for seq, count in pairs)


def free_blocks_without(state: State, sequences: list[Sequence]) -> list[int]:
    gone = [block for seq in sequences for block in seq.held_blocks()]

    def stays(block: Block) -> bool:
        held = block.in_flight["primary"] or block.pins["primary"] or block.locks["primary"] or block.kept("primary")
        return bool(held) or block.refs > gone.count(block)

    return [
        window.capacity("primary") - sum(block.slots["primary"] is not None and stays(block) for block in window.blocks)
        for window in state.windows
    ]


def front_blocks_removed(seq: Sequence, w: int) -> int:
    return sum(column.left for column in seq.columns[w])
