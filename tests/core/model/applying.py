"""Section 4, second half: a batch that has been found good is carried out."""

from .admission import Plan
from .chunks import keep
from .eviction import take_slot
from .state import Block, Column, Room, Sequence, State, Window
from .values import PRIORITY_DEFAULT, Admission, Request, RequestStats, Tier


def apply_batch(state: State, plans: list[Plan]) -> list[Admission]:
    takers: dict[int, Block] = {}
    for plan in plans:
        for w in range(len(state.windows)):
            claim(state, plan, w, takers)
    return [apply_plan(state, plan) for plan in plans]


def claim(state: State, plan: Plan, w: int, takers: dict[int, Block]) -> None:
    """From here on, eviction cannot reach the blocks that the plan counts on. `takers`: by serial of the block taken
    over."""
    window = state.windows[w]
    first = plan.matches[w].outside(plan.full)
    for index, block in enumerate(plan.claimed(w)):
        if block is not None and index >= first:
            hold(state, plan, block, w)
            block.deadline_ms = None
            block.asked_again = True
            found = plan.request.retention.at(index * plan.block_size)
            if found is not None:
                state.set_retention(block, found.priority, found.duration_ms)
    if not plan.rest:
        return
    source = plan.source(w)
    if plan.ways[w] == "takeover":
        taker = new_prompt_block(state, window, plan.request, plan.full * plan.block_size)
        take_over(state, source, taker)
        takers[source.serial] = plan.taken[w] = taker
    else:
        # An earlier request of the batch may have taken over the slot that this one reads.
        plan.read[w] = takers.get(source.serial, source) if plan.ways[w] == "copy" else source
        hold(state, plan, plan.read[w], w)


def hold(state: State, plan: Plan, block: Block, w: int) -> None:
    block.claims += 1
    plan.on_hold[w].append(block)
    state.refresh(block)


def apply_plan(state: State, plan: Plan) -> Admission:
    windows = state.windows
    stats = RequestStats(tokens_reused=plan.reuse, tokens_new=plan.tokens_new)
    rows: list[list[Column]] = [[] for _ in windows]
    request = plan.request
    rooms = [Room() for _ in windows]
    sequence = Sequence(
        request, plan.length, list(request.tokens), plan.reuse, plan.reuse, rows, rooms, plan.full, stats
    )
    for w, window in enumerate(windows):
        place_claimed(state, plan, w, sequence)
        if plan.rest:
            place_partial(state, plan, w, sequence)
        for index in range(len(rows[w]), plan.blocks_first):
            new = [new_prompt_block(state, window, request, index * plan.block_size) for _ in range(plan.width(index))]
            for block in new:
                take_slot(state, window, block)
            rows[w].append(Column(new))
            stats.blocks_new += len(new)
        stats.blocks_missed += len(request.tokens) // plan.block_size - plan.full
        unclaim(state, plan, w)
    state.sequences[request.request_id] = sequence
    for w in range(len(windows)):
        keep(state, sequence, w, plan.chunk)
    state.bump("requests")
    for name, value in vars(stats).items():
        state.bump(name, value)
    return Admission(
        request.request_id,
        plan.reuse,
        plan.tokens_new,
        stats.blocks_reused,
        stats.blocks_onboarded,
        stats.blocks_new,
    )


def place_claimed(state: State, plan: Plan, w: int, sequence: Sequence) -> None:
    window = state.windows[w]
    first = plan.matches[w].outside(plan.full)
    for index, block in enumerate(plan.claimed(w)):
        sequence.columns[w].append(Column([] if block is None else [block], left=index < first))
        sequence.stats.blocks_reused += 1
        if block is None or index < first:
            continue
        block.refs += 1
        host_slot = block.slots["host"]
        if block.slots["primary"] is None:
            assert host_slot is not None
            slot = take_slot(state, window, block)
            state.queue_transfer("onboard", window, (block, host_slot), (block, slot), len(block.tokens))
            sequence.stats.blocks_onboarded += 1


def unclaim(state: State, plan: Plan, w: int) -> None:
    for block in plan.on_hold[w]:
        block.claims -= 1
        state.refresh(block)


def new_block(state: State, window: Window, priority: int, duration_ms: int | None) -> Block:
    block = Block(state.tick(), priority, duration_ms)
    block.refs = 1
    window.blocks.append(block)
    return block


def new_prompt_block(state: State, window: Window, request: Request, first_token: int) -> Block:
    found = request.retention.at(first_token)
    if found is None:
        return new_block(state, window, PRIORITY_DEFAULT, None)
    return new_block(state, window, found.priority, found.duration_ms)


def place_partial(state: State, plan: Plan, w: int, sequence: Sequence) -> None:
    window, way = state.windows[w], plan.ways[w]
    sequence.stats.blocks_reused += 1
    state.bump("blocks_reused_partial")
    if way == "takeover":
        sequence.columns[w].append(Column([plan.taken[w]]))
        return
    tier: Tier = "primary" if way == "copy" else "host"
    slot_source = plan.read[w].slots[tier]
    assert slot_source is not None
    column = Column([])
    for _ in range(plan.width(plan.full)):
        block = new_prompt_block(state, window, plan.request, plan.full * plan.block_size)
        slot = take_slot(state, window, block)
        state.queue_transfer(way, window, (plan.read[w], slot_source), (block, slot), plan.rest)
        column.blocks.append(block)
    sequence.columns[w].append(column)
    if way == "onboard":
        sequence.stats.blocks_onboarded += len(column.blocks)
    else:
        state.bump("blocks_copied", len(column.blocks))


def take_over(state: State, source: Block, block: Block) -> None:
    """The slot passes from the source to the block; the source goes on only as its host copy."""
    block.slots["primary"], source.slots["primary"] = source.slots["primary"], None
    if source.slots["host"] is not None:
        state.refresh(source)
    else:
        state.drop(source)
