"""Section 6: which block gives way. Every choice is a `min` over a plain list."""

from .state import Block, State, Window
from .values import Tier


def take_slot(state: State, window: Window, block: Block) -> int:
    """Gives the block a primary slot, evicting if none is free. Returns the tenancy's serial."""
    if window.free("primary") == 0:
        evict_primary(state, window, primary_victim(window))
    return assign(state, window, block, "primary")


def assign(state: State, window: Window, block: Block, tier: Tier) -> int:
    assert window.free(tier) > 0 and block.slots[tier] is None
    serial = state.tick()
    block.slots[tier] = serial
    return serial


def primary_victim(window: Window) -> Block:
    candidates = window.cached()
    leaves = [b for b in candidates if b.outside or all(child.slots["primary"] is None for child in window.children(b))]
    return min(leaves or candidates, key=lambda b: (b.priority, b.cached_at))


def evict_primary(state: State, window: Window, victim: Block) -> None:
    if victim.slots["host"] is not None:
        state.free(victim, "primary")
        return
    wanted = victim.priority >= state.config.offload_priority_min
    if wanted and make_host_room(state, window, victim) and victim.in_tree:
        offload(state, window, victim)
    elif victim.in_tree:
        state.bump("blocks_dropped", len(list(victim.family())))
        state.drop(victim)


def offload(state: State, window: Window, victim: Block) -> None:
    slot_target = assign(state, window, victim, "host")
    slot_source = victim.slots["primary"]
    assert slot_source is not None
    state.queue_transfer("offload", window, (victim, slot_source), (victim, slot_target), len(victim.tokens))
    state.bump("blocks_offloaded")
    state.free(victim, "primary")


def may_push_out(state: State, window: Window, only: list[Block], evicted: Block, victim: Block) -> bool:
    if state.config.host_admission == "all" or evicted.asked_again or evicted.priority > victim.priority:
        return True
    protected = victim.asked_again and newcomers_have_enough(window, only)
    return window.newcomers.share >= 1_000_000 // 32 and not protected


def newcomers_have_enough(window: Window, only: list[Block]) -> bool:
    others = sum(b.asked_again for b in only)
    return others * 1_000_000 <= (1_000_000 - window.newcomers.share) * window.newcomers.slots


def host_victim(state: State, window: Window, only: list[Block]) -> Block:
    """Of blocks that are only in host."""
    leaves = [b for b in only if b.outside or not window.children(b)]
    candidates = leaves or only
    lowest = [b for b in candidates if b.priority == min(c.priority for c in candidates)]
    newcomers = [b for b in lowest if not b.asked_again]
    if state.config.host_admission == "adaptive" and 0 < len(newcomers) < len(lowest):
        newcomer = newcomers_have_enough(window, only)
        lowest = [b for b in lowest if b.asked_again is not newcomer]
    return min(lowest, key=lambda b: b.entered_at)


def make_host_room(state: State, window: Window, evicted: Block | None = None) -> bool:
    """Whether a host slot is free now, for the evicted block if there is one.

    It may have cost a host copy, or a whole branch of the tree.
    """
    if window.capacity("host") == 0:
        return False
    if window.free("host") > 0:
        return True
    in_both = [b for b in window.tree() if b.host_group == "also_in_primary"]
    if in_both:
        state.free(min(in_both, key=lambda b: (b.priority, b.entered_at)), "host")
        return True
    only = [b for b in window.tree() if b.host_group == "only_in_host"]
    if not only:
        return False
    victim = host_victim(state, window, only)
    if evicted is not None and not may_push_out(state, window, only, evicted, victim):
        state.bump("blocks_declined")
        return False
    state.bump("blocks_dropped", len(list(victim.family())))
    state.drop(victim)
    return True
