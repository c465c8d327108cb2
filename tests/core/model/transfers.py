"""Section 7: copies are queued in the order in which they must run, taken under a ticket, and end once."""

from .state import Block, State, Transfer

NOTHING = 0  # the ticket of no transfers


def take(state: State) -> tuple[int, list[Transfer]]:
    if not state.queued:
        return NOTHING, []
    ticket = state.tick()
    items, state.queued = state.queued, []
    state.tickets[ticket] = items
    return ticket, items


def complete(state: State, ticket: int) -> None:
    for item in end(state, ticket):
        land(item)
        state.refresh(item.target)
        unlock(state, item)


def fail(state: State, ticket: int) -> list[int]:
    """Returns the ids of the requests that own a block whose content never came."""
    missing: list[Block] = []
    for item in end(state, ticket):
        land(item)
        unlock(state, item)
        state.bump("blocks_failed")
        if item.kind == "offload" and item.target.slots["primary"] is not None:
            give_up_copy(state, item.target)
            continue
        if item.kind == "offload" or item.target.refs > 0:
            item.target.undelivered = True
            missing.append(item.target)
        if item.target.in_tree:
            state.drop(item.target)
        else:
            state.refresh(item.target)
    return sorted(id for id, seq in state.sequences.items() if any(block in missing for block in seq.held_blocks()))


def give_up_copy(state: State, block: Block) -> None:
    """The block in primary is as good as before; whoever kept the copy keeps that block."""
    block.kept_in = "primary"
    block.slots["host"] = None
    state.refresh(block)


def end(state: State, ticket: int) -> list[Transfer]:
    if ticket == NOTHING:
        return []
    if ticket not in state.tickets:
        raise ValueError(f"ticket {ticket} is unknown or has ended")
    return state.tickets.pop(ticket)


def land(item: Transfer) -> None:
    assert item.target.in_flight[item.tier_target] and item.target.slots[item.tier_target] == item.slot_target
    item.target.in_flight[item.tier_target] = False


def unlock(state: State, item: Transfer) -> None:
    if item.kind != "offload":
        item.source.locks[item.tier_source] -= 1
        state.refresh(item.source)
