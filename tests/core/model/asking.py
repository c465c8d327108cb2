"""Questions that a scheduler asks before it decides. Everything here only reads."""

from .admission import Plan, slots_new
from .chunks import blocks_at_most, blocks_over
from .growth import Growth
from .state import Block, Sequence, State, Window


def blocks_to_admit(state: State, plan: Plan, tokens_new_max: int) -> list[int]:
    """Per window, for a plan that has been made to fit: what leaves the free and cached blocks for this request."""
    size, length, beams = state.config.tokens_per_block, len(plan.request.tokens), plan.request.beam_width
    grown = (-(-(length + tokens_new_max) // size) - -(-length // size)) * beams
    own = blocks_over(plan.request, length, size) - plan.full
    answer = []
    for w in range(len(state.windows)):
        most = blocks_at_most(state, w, plan.request, plan.chunk)
        more = grown if most is None else min(grown, most * beams - min(own, most))
        answer.append(slots_new(state, plan, w) + lifted(state, plan, w) + more)
    return answer


def lifted(state: State, plan: Plan, w: int) -> int:
    """Blocks that were cached, and those that come up from host."""
    window = state.windows[w]
    taken = plan.held(w) + ([plan.source(w)] if plan.rest and plan.ways[w] != "onboard" else [])
    cached = {block.serial for block in taken if block in window.cached()}
    onboarded = {block.serial for block in plan.held(w) if block.slots["primary"] is None}
    return len(cached) + len(onboarded)


def blocks_to_grow(state: State, sequences: list[Sequence], counts: list[int]) -> int:
    """Beyond what is kept, in the window where it is most."""
    steps = [Growth(seq, count, None, 0) for seq, count in zip(sequences, counts, strict=True)]
    return max(
        sum(max(0, step.blocks(state) - step.seq.rooms[w].kept) for step in steps) for w in range(len(state.windows))
    )


def free_blocks_without(state: State, sequences: list[Sequence]) -> list[int]:
    gone = [block for seq in sequences for block in seq.held_blocks()]

    def stays(block: Block) -> bool:
        held = block.in_flight["primary"] or block.pins["primary"] or block.locks["primary"] or block.kept("primary")
        return bool(held) or block.refs > gone.count(block)

    def there(w: int, window: Window) -> int:
        held = sum(block.slots["primary"] is not None and stays(block) for block in window.blocks)
        kept = sum(seq.rooms[w].kept for seq in state.sequences.values() if seq not in sequences)
        return max(0, window.capacity("primary") - held - kept)

    return [there(w, window) for w, window in enumerate(state.windows)]


def front_blocks_removed(seq: Sequence, w: int) -> int:
    return sum(column.left for column in seq.columns[w])
