"""Section 5, first half: sequences grow and rewind; what has left a window is let go."""

from dataclasses import dataclass

from .applying import new_block, new_prompt_block
from .chunks import blocks_over, returned, settle, there
from .eviction import take_slot
from .state import Block, Column, Sequence, State
from .storing import enter_tree
from .values import OutOfBlocks


@dataclass
class Growth:
    seq: Sequence
    count: int
    tokens: list[int] | None
    computed: int

    def blocks(self, state: State) -> int:
        """The blocks that it takes in each window."""
        size, seq = state.config.tokens_per_block, self.seq
        return blocks_over(seq.request, seq.length + self.count, size) - blocks_over(seq.request, seq.length, size)


def add_tokens(state: State, grown: list[Growth]) -> None:
    """All is checked by the caller, except for capacity: that is judged before anything leaves."""
    for w, window in enumerate(state.windows):
        kept = others = 0
        for each in grown:
            past = behind(state, w, max(each.seq.tokens_computed, each.computed))
            beyond = max(0, each.blocks(state) - returned(each.seq, w, past))
            own = min(beyond, each.seq.rooms[w].kept)
            kept, others = kept + own, others + beyond - own
        for needed, free in (
            (others, max(0, there(state, w))),
            (kept, window.free("primary") + len(window.cached())),  # pins may hold some of what is kept
        ):
            if needed > free:
                raise OutOfBlocks(needed, free, window.shape.size)
    for each in grown:
        each.seq.tokens_computed = max(each.seq.tokens_computed, each.computed)
        for w in range(len(state.windows)):
            leave(state, each.seq, w)
        grow(state, each.seq, each.count, each.tokens)
    for each in grown:
        for w in range(len(state.windows)):
            settle(state, each.seq, w)


def behind(state: State, w: int, computed: int) -> int:
    """Leading blocks that no position from `computed` on looks back to."""
    size = state.windows[w].shape.size
    return 0 if size is None else max(0, computed - size) // state.config.tokens_per_block


def leave(state: State, seq: Sequence, w: int) -> None:
    """Blocks that ended at or before `computed - window` leave; what is known of them enters the tree."""
    past = behind(state, w, seq.tokens_computed)
    seq.rooms[w].kept += returned(seq, w, past)
    leaving = [column for column in seq.columns[w][:past] if not column.left]
    if leaving:
        good = min(seq.tokens_computed, len(seq.known))
        enter_tree(state, seq, w, min(good, past * state.config.tokens_per_block), partial=False)
    for column in leaving:
        column.left, column.doubtful = True, column.unsure
        for block in column.blocks:
            let_go(state, block, outside=True)


def let_go(state: State, block: Block, outside: bool = False) -> None:
    block.refs -= 1
    block.outside = outside
    state.refresh(block)


def grow(state: State, seq: Sequence, count: int, tokens: list[int] | None) -> None:
    size = state.config.tokens_per_block
    request, blocks = seq.request, -(-(seq.length + count) // size)
    of_prompt = -(-len(request.tokens) // size)
    for w, window in enumerate(state.windows):
        for position in range(len(seq.columns[w]), min(blocks, of_prompt)):
            shared = (position + 1) * size <= len(request.tokens)
            width = 1 if shared else request.beam_width
            new = [new_prompt_block(state, window, request, position * size) for _ in range(width)]
            append(state, seq, w, new, "blocks_new")
            seq.rooms[w].kept = max(0, seq.rooms[w].kept - width)
    kept = request.retention
    for w, window in enumerate(state.windows):
        for _ in range(len(seq.columns[w]), blocks):
            new = [
                new_block(state, window, kept.decode_priority, kept.decode_duration_ms)
                for _ in range(request.beam_width)
            ]
            append(state, seq, w, new, "blocks_grown")
    seq.length += count
    if tokens is not None:
        seq.known += tokens


def append(state: State, seq: Sequence, w: int, blocks: list[Block], counter: str) -> None:
    for block in blocks:
        take_slot(state, state.windows[w], block)
    seq.columns[w].append(Column(blocks))
    setattr(seq.stats, counter, getattr(seq.stats, counter) + len(blocks))
    state.bump(counter, len(blocks))


def rewind(state: State, seq: Sequence, count: int) -> None:
    length = seq.length - count
    if count < 0 or (count and length < len(seq.request.tokens)):
        raise ValueError(f"rewind by {count} of {seq.length}: only what has grown can be rewound")
    size = state.config.tokens_per_block
    kept = -(-length // size)
    for w, window in enumerate(state.windows):
        computed = min(seq.tokens_computed, length)
        first_needed = 0 if window.shape.size is None else max(0, computed - window.shape.size) // size
        if any(column.left for column in seq.columns[w][first_needed:kept]):
            raise ValueError(f"rewind to {length}: a block that has left window {window.shape.size} would be needed")
    for w in range(len(state.windows)):
        while len(seq.columns[w]) > kept:
            column = seq.columns[w].pop()
            for block in column.blocks if not column.left else []:
                let_go(state, block)
    seq.length = length
    seq.tokens_computed = min(seq.tokens_computed, length)
    del seq.known[max(length, len(seq.request.tokens)) :]
