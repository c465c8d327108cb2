"""Section 5, second half: what has been computed enters the tree, so that others can find it."""

from .matching import twin
from .state import Block, Root, Sequence, State
from .values import Extras, Tokens


def enter_tree(state: State, seq: Sequence, w: int, length: int, partial: bool) -> int:
    """The sequence's first `length` tokens, block by block; with `partial` the incomplete last block too.

    Returns how many leading blocks have been passed or entered.
    """
    if not state.config.block_reuse:
        return 0
    index = -1
    size, window = state.config.tokens_per_block, state.windows[w]
    node: Root | Block = window.root(seq.request.root)
    contents: list[tuple[Tokens, Extras]] = []
    for index, column in enumerate(seq.columns[w][: seq.first_unsure()]):
        if window.shape.size is not None:
            node = window.root(seq.request.root, tuple(contents))
        tokens = tuple(seq.known[index * size : min((index + 1) * size, length)])
        if not tokens or len(column.blocks) > 1:
            return index
        contents.append((tokens, seq.request.extras(index * size, index * size + len(tokens))))
        if window.shape.size is not None and len(tokens) == size and column.left:
            continue  # nothing hangs on it
        block = column.blocks[0]
        if block.in_tree:
            node = block
            continue
        if len(tokens) < size:
            if partial and not column.left:
                enter_incomplete(state, seq, node, block, index * size, tokens)
            return index
        known_as = twin(node, tokens, seq.request, index * size)
        if known_as is None:
            if column.left:
                return index
            add_child(state, seq, node, block, index * size, tokens)
        node = known_as or block
    return index + 1


def enter_incomplete(state: State, seq: Sequence, node: Root | Block, block: Block, begin: int, tokens: Tokens) -> None:
    extras = seq.request.extras(begin, begin + len(tokens))
    if not any(c.extras == extras and c.tokens[: len(tokens)] == tokens for c in node.children):
        add_child(state, seq, node, block, begin, tokens)


def add_child(state: State, seq: Sequence, node: Root | Block, block: Block, begin: int, tokens: Tokens) -> None:
    block.parent, block.tokens = node, tokens
    block.extras = seq.request.extras(begin, begin + len(tokens))
    node.children.append(block)
    window = state.window_of(block)
    assert window is not None
    block.asked_again = len(block.tokens) == state.config.tokens_per_block and block.spelled() in window.gone
    if len(block.tokens) == state.config.tokens_per_block:
        window.newcomers.missed(block.spelled())
    state.bump("blocks_stored")
    state.refresh(block)


def remove(state: State, seq: Sequence, store: bool) -> None:
    """Stores what is known to be good, then lets everything go, last block first."""
    if store:
        length = min(seq.tokens_computed, len(seq.known))
        partial = state.config.partial_reuse and seq.request.beam_width == 1
        for w in range(len(state.windows)):
            enter_tree(state, seq, w, length, partial)
    let_go_all(state, seq)
    del state.sequences[seq.request.request_id]


def let_go_all(state: State, seq: Sequence) -> None:
    for room in seq.rooms:
        room.kept = 0
    for row in seq.columns:
        for column in reversed(row):
            if not column.left:
                for block in column.blocks:
                    if seq.suspended:
                        block.keepers -= 1
                    else:
                        block.refs -= 1
                        block.outside = False
                    state.refresh(block)
