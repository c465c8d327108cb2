"""Section 5, first half: sequences grow and rewind; what has left a window is let go."""

from dataclasses import dataclass

from .applying import new_block
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


def add_tokens(state: State, grown: list[Growth]) -> None:
    """All is checked by the caller, except for capacity: that is judged before anything leaves."""
    for w, window in enumerate(state.windows):
        needed = sum(columns_missing(state, each.seq, w, each.count) * each.seq.request.beam_width for each in grown)
        free = window.free("primary") + len(window.cached())
        if needed > free:
            raise OutOfBlocks(needed, free, window.shape.size)
    for each in grown:
        each.seq.tokens_computed = max(each.seq.tokens_computed, each.computed)
        for w in range(len(state.windows)):
            leave(state, each.seq, w)
        grow(state, each.seq, each.count, each.tokens)


def columns_missing(state: State, seq: Sequence, w: int, count: int) -> int:
    return -(-(seq.length + count) // state.config.tokens_per_block) - len(seq.columns[w])


def leave(state: State, seq: Sequence, w: int) -> None:
    """Blocks that ended at or before `computed - window` leave; what is known of them enters the tree."""
    size = state.windows[w].shape.size
    if size is None:
        return
    past = max(0, seq.tokens_computed - size) // state.config.tokens_per_block
    leaving = [column for column in seq.columns[w][:past] if not column.left]
    if leaving:
        good = min(seq.tokens_computed, len(seq.known))
        enter_tree(state, seq, w, min(good, past * state.config.tokens_per_block), partial=False)
    for column in leaving:
        column.left, column.doubtful = True, column.unsure
        for block in column.blocks:
            let_go(state, block)


def let_go(state: State, block: Block) -> None:
    block.refs -= 1
    state.refresh(block)


def grow(state: State, seq: Sequence, count: int, tokens: list[int] | None) -> None:
    retention = seq.request.retention
    for w, window in enumerate(state.windows):
        for _ in range(columns_missing(state, seq, w, count)):
            column = Column([])
            for _ in range(seq.request.beam_width):
                block = new_block(state, window, retention.decode_priority, retention.decode_duration_ms)
                take_slot(state, window, block)
                column.blocks.append(block)
            seq.columns[w].append(column)
            seq.stats.blocks_grown += len(column.blocks)
            state.bump("blocks_grown", len(column.blocks))
    seq.length += count
    if tokens is not None:
        seq.known += tokens


def rewind(state: State, seq: Sequence, count: int) -> None:
    length = seq.length - count
    if count < 0 or length < len(seq.request.tokens):
        raise ValueError(f"rewind by {count} of {seq.length}: only what has grown can be rewound")
    if length < seq.committed:
        raise ValueError(f"rewind to {length}: {seq.committed} have been offered to others")
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
    del seq.known[length:]
