"""Section 12: a live sequence goes to host and comes back. Everything is checked before anything changes."""

from .chunks import there
from .eviction import assign, make_host_room, take_slot
from .state import Block, Sequence, State, Window
from .storing import let_go_all
from .values import BlockInFlight, OutOfBlocks


def blocks_of(state: State, seq: Sequence, w: int) -> list[tuple[Block, int]]:
    """Each held block, position by position, with how many tokens may be written in it."""
    size = state.config.tokens_per_block
    return [
        (block, min(size, seq.length - position * size))
        for position, column in enumerate(seq.columns[w])
        if not column.left
        for block in column.blocks
    ]


def suspend(state: State, seq: Sequence) -> int:
    if seq.length < len(seq.request.tokens):
        raise ValueError("its prompt is not reserved to its end")
    for w in range(len(state.windows)):
        for block, _ in blocks_of(state, seq, w):
            if not block.settled("primary"):
                raise BlockInFlight
            if block.undelivered:
                raise ValueError("a block of it was lost")
    for w, window in enumerate(state.windows):
        check_host_room(window, [block for block, _ in blocks_of(state, seq, w)])
    before = state.total.get("blocks_offloaded", 0)
    for w, window in enumerate(state.windows):
        held = blocks_of(state, seq, w)
        without_copy = [(block, tokens) for block, tokens in held if block.slots["host"] is None]
        for block, _ in held:
            if block.slots["host"] is not None:
                keep(state, block)
        for block, tokens in without_copy:
            assert make_host_room(state, window)
            queue_copy_to_host(state, window, block, len(block.tokens) if block.in_tree else tokens)
            keep(state, block)
    let_go_all(state, seq)
    seq.suspended = True
    return state.total.get("blocks_offloaded", 0) - before


def check_host_room(window: Window, blocks: list[Block]) -> None:
    needed = sum(block.slots["host"] is None for block in blocks)
    going = [block for block in window.tree() if block.host_group is not None and block not in blocks]
    free = window.free("host") + len(going)
    if needed > free:
        raise OutOfBlocks(needed, free, window.shape.size)


def queue_copy_to_host(state: State, window: Window, block: Block, tokens: int) -> None:
    """The primary slot stays the block's own until somebody wants it."""
    slot_target, slot_source = assign(state, window, block, "host"), block.slots["primary"]
    assert slot_source is not None
    state.queue_transfer("offload", window, (block, slot_source), (block, slot_target), tokens)
    state.bump("blocks_offloaded")


def keep(state: State, block: Block) -> None:
    """Kept in host from now on, whoever kept it in primary before."""
    block.keepers += 1
    block.kept_in = "host"
    state.refresh(block)


def keep_no_more(state: State, block: Block) -> None:
    block.keepers -= 1
    state.refresh(block)


def resume(state: State, seq: Sequence) -> int:
    if not seq.suspended:
        raise ValueError("not suspended")
    for w, window in enumerate(state.windows):
        held = [block for block, _ in blocks_of(state, seq, w)]
        for block in held:
            if block.undelivered:
                raise ValueError("a block of it was lost meanwhile")
            if not block.usable or (not block.in_tree and block.in_flight["host"]):
                raise BlockInFlight
        needed, free = taken_to_return(window, held), max(0, there(state, w))
        if needed > free:
            raise OutOfBlocks(needed, free, window.shape.size)
    onboarded = 0
    for w, window in enumerate(state.windows):
        held_here = blocks_of(state, seq, w)
        for block, _ in held_here:
            block.refs += 1
            block.deadline_ms = None
            state.refresh(block)
        for block, tokens in held_here:
            host_slot = block.slots["host"]
            if block.slots["primary"] is None:
                assert host_slot is not None
                slot = take_slot(state, window, block)
                whole = len(block.tokens) if block.in_tree else tokens
                state.queue_transfer("onboard", window, (block, host_slot), (block, slot), whole)
                state.bump("blocks_onboarded")
                onboarded += 1
        for block, _ in held_here:
            keep_no_more(state, block)
    seq.suspended = False
    return onboarded


def blocks_to_resume(state: State, seq: Sequence) -> list[int]:
    if not seq.suspended:
        raise ValueError("not suspended")
    held = [[block for block, _ in blocks_of(state, seq, w)] for w in range(len(state.windows))]
    return [taken_to_return(window, blocks) for window, blocks in zip(state.windows, held, strict=True)]


def taken_to_return(window: Window, held: list[Block]) -> int:
    """Counts the blocks that resuming takes of those that anybody may have."""
    return sum(block.slots["primary"] is None or block in window.cached() for block in held)
