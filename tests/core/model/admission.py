"""Section 4, first half: claims, ways, budget and capacity. Everything here only reads."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from .chunks import blocks_at_most, blocks_over, there
from .matching import Match, match
from .state import Block, State
from .values import OutOfBlocks, Request

Way = Literal["takeover", "copy", "onboard"]


@dataclass
class Plan:
    """The plan of a batch says what one of its requests will get."""

    request: Request
    matches: list[Match]  # per window
    reuse: int
    block_size: int
    chunk: int | None  # tokens that are reserved at a time
    ways: list[Way] = field(default_factory=list)  # per window, if there is a partial reuse
    # While the batch is applied, per window: who took the source over, whose slot is read, and what may not be evicted.
    taken: dict[int, Block] = field(default_factory=dict)
    read: dict[int, Block] = field(default_factory=dict)
    on_hold: dict[int, list[Block]] = field(default_factory=lambda: defaultdict(list))

    @property
    def full(self) -> int:
        return self.reuse // self.block_size

    @property
    def rest(self) -> int:
        return self.reuse % self.block_size

    @property
    def tokens_new(self) -> int:
        return len(self.request.tokens) - self.reuse

    @property
    def length(self) -> int:
        """Positions that admission reserves."""
        return len(self.request.tokens) if self.chunk is None else self.reuse + min(self.tokens_new, self.chunk)

    @property
    def blocks_first(self) -> int:
        return -(-self.length // self.block_size)

    def claimed(self, w: int) -> list[Block | None]:
        """Held or not, there or not."""
        return self.matches[w].found[: self.full]

    def source(self, w: int) -> Block:
        return self.matches[w].source(self.full)

    def held(self, w: int) -> list[Block]:
        first = self.matches[w].outside(self.full)
        return [block for block in self.claimed(w)[first:] if block is not None]

    def found(self, w: int) -> list[Block]:
        """Those that lie outside the window are left where they are."""
        return self.held(w) + ([self.source(w)] if self.rest else [])

    def width(self, index: int) -> int:
        """Blocks that the sequence holds at this position: the prompt's incomplete last one exists once per beam."""
        shared = (index + 1) * self.block_size <= len(self.request.tokens)
        return 1 if shared else self.request.beam_width


def plan_batch(state: State, requests: list[Request], chunk: int | None = None) -> list[Plan]:
    plans = []
    for request in requests:
        matches = [match(state.config, window, request) for window in state.windows]
        reuse = max(n for n in range(len(request.tokens)) if all(m.allows(n) for m in matches))
        if not state.config.partial_reuse:
            reuse -= reuse % state.config.tokens_per_block
        plans.append(Plan(request, matches, reuse, state.config.tokens_per_block, chunk))
    for position, plan in enumerate(plans):
        if plan.rest:
            ways = [way_of(state, plans, position, w) for w in range(len(state.windows))]
            if None in ways:
                plan.reuse = plan.full * plan.block_size
            else:
                plan.ways = [way for way in ways if way is not None]
    return plans


def way_of(state: State, plans: list[Plan], position: int, w: int) -> Way | None:
    plan = plans[position]
    source = plan.source(w)
    if source.settled("primary"):
        claimed = any(source in other.held(w) for other in plans)
        used_before = any(other.rest and source is other.source(w) for other in plans[:position])
        held = source.refs or source.pins["primary"] or source.locks["primary"] or source.kept("primary")
        followed = state.windows[w].children(source)
        if not held and not followed and not claimed and not used_before and plan.width(plan.full) == 1:
            return "takeover"
    if not state.config.copy_on_partial_reuse:
        return None
    return "copy" if source.settled("primary") else "onboard"


def within_budget(plans: list[Plan], tokens_new_max: int | None) -> list[Plan]:
    admitted: list[Plan] = []
    spent = 0
    for plan in plans:
        spent += plan.length - plan.reuse
        if tokens_new_max is not None and spent > tokens_new_max:
            break
        admitted.append(plan)
    return admitted


def fit(state: State, plans: list[Plan]) -> None:
    """Gives up the partial reuse of whoever has no room for a source that is copied. Raises if that is not enough."""
    spare: list[int] = []
    kept: list[list[Block]] = []
    for w, window in enumerate(state.windows if plans else []):
        needed = sum(slots_new(state, plan, w) for plan in plans)
        lifted = [b for plan in plans for b in plan.held(w)]
        needed += len({b.serial for b in lifted if b.slots["primary"] is None})
        taken_over = [plan.source(w) for plan in plans if plan.rest and plan.ways[w] == "takeover"]
        kept.append(lifted + taken_over)
        free = there(state, w) - sum(b in kept[w] for b in window.cached())
        needed, free = needed - min(0, free), max(0, free)  # what is claimed may be all that is not kept
        if needed > free:
            raise OutOfBlocks(needed, free, window.shape.size)
        spare.append(free - needed)
    for plan in plans:
        if plan.rest:
            keep_copies(state, plan, spare, kept)


def keep_copies(state: State, plan: Plan, spare: list[int], kept: list[list[Block]]) -> None:
    costs = [
        way == "copy" and plan.source(w) in window.cached() and plan.source(w) not in kept[w]
        for w, (window, way) in enumerate(zip(state.windows, plan.ways, strict=True))
    ]
    if any(cost > spare[w] for w, cost in enumerate(costs)):
        for w, way in enumerate(plan.ways):
            if way == "takeover":
                kept[w].remove(plan.source(w))
        plan.reuse, plan.ways = plan.full * plan.block_size, []
        return
    for w, cost in enumerate(costs):
        spare[w] -= cost
        kept[w].append(plan.source(w))


def slots_new(state: State, plan: Plan, w: int) -> int:
    total = blocks_over(plan.request, len(plan.request.tokens), plan.block_size) - plan.full
    most = blocks_at_most(state, w, plan.request, plan.chunk)
    total = total if most is None else min(total, most)
    taken_over = bool(plan.rest) and plan.ways[w] == "takeover"
    return total - (1 if taken_over else 0)
