"""Prompts that are reserved chunk by chunk: what they hold at a time, and the slots kept for the rest of them."""

from .state import Sequence, State
from .values import Request


def blocks_over(request: Request, length: int, size: int) -> int:
    """The blocks of one window. Beams share the prompt's full blocks."""
    blocks = -(-length // size)
    shared = min(blocks, len(request.tokens) // size)
    return shared + (blocks - shared) * request.beam_width


def blocks_at_most(state: State, w: int, request: Request, chunk: int | None) -> int | None:
    """A prompt's own blocks within the window and a chunk, wherever they begin; None if all of the prompt counts."""
    reach, size = state.windows[w].shape.size, state.config.tokens_per_block
    if reach is None or chunk is None:
        return None
    touched = max(-(-(start + reach + chunk) // size) for start in range(size))
    return touched + (request.beam_width - 1 if len(request.tokens) % size else 0)


def there(state: State, w: int) -> int:
    """Slots that anybody may have; below nothing where pins hold some of what is kept."""
    window = state.windows[w]
    return window.free("primary") + len(window.cached()) - sum(s.rooms[w].kept for s in state.sequences.values())


def to_come(state: State, seq: Sequence) -> int:
    size, prompt = state.config.tokens_per_block, len(seq.request.tokens)
    return blocks_over(seq.request, prompt, size) - blocks_over(seq.request, min(seq.length, prompt), size)


def keep(state: State, seq: Sequence, w: int, chunk: int | None) -> None:
    room = seq.rooms[w]
    room.most = blocks_at_most(state, w, seq.request, chunk)
    room.rolls = to_come(state, seq) > 0
    settle(state, seq, w)


def settle(state: State, seq: Sequence, w: int) -> None:
    """Keeps as much as the rest of the prompt needs, or as the room allows beside the blocks that it has."""
    room, wanted = seq.rooms[w], to_come(state, seq)
    own = sum(len(column.blocks) for column in seq.columns[w][seq.claimed :] if not column.left)
    if room.rolls and room.most is not None:
        wanted = min(wanted, max(0, room.most - own))
    room.kept = min(wanted, room.kept + max(0, there(state, w))) if wanted else 0
    room.rolls = room.kept < to_come(state, seq)


def returned(seq: Sequence, w: int, past: int) -> int:
    """Slots of blocks about to leave that come back to the sequence."""
    leaving = [column for column in seq.columns[w][seq.claimed : past] if not column.left]
    return sum(block.at_rest for column in leaving for block in column.blocks) if seq.rooms[w].rolls else 0
