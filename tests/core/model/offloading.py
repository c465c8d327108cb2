"""Section 13: copies to host that somebody asks for."""

from .eviction import make_host_room
from .preemption import check_host_room, queue_copy_to_host
from .state import Block, State, Window
from .values import TIERS


def offload(state: State, window: Window, candidates: list[list[Block]], stop_on_miss: bool) -> list[Block | None]:
    """`candidates`: per hash, the tree blocks of the window that have it."""
    found: list[Block | None] = []
    for blocks in candidates:
        hit = blocks[0] if len(blocks) == 1 and (blocks[0].settled("primary") or blocks[0].slots["host"]) else None
        if hit is None and stop_on_miss:
            found += [None] * (len(candidates) - len(found))
            break
        found.append(hit)
    hits = list({block.serial: block for block in found if block is not None}.values())
    check_host_room(window, hits)
    for block in hits:
        lock(state, block, 1)
    for block in hits:
        if block.slots["host"] is None:
            assert make_host_room(state, window)
            if block.in_tree:  # else it went with an ancestor that made room
                queue_copy_to_host(state, window, block, len(block.tokens))
                block.locks["host"] += 1
    answer = [block if block is not None and block.in_tree else None for block in found]
    for block in hits:
        lock(state, block, -1)
    return answer


def lock(state: State, block: Block, by: int) -> None:
    for tier in TIERS:
        if block.slots[tier] is not None:
            block.locks[tier] += by
    state.refresh(block)
