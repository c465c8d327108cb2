"""Live requests as the scheduler side knows them: their tokens, their blocks and their transfers."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.native import TierClaim, TierIndex
from trtllm_kvfix.offload.layout import blocks_by_group, flat

if TYPE_CHECKING:
    from trtllm_kvfix.offload.remote.keys import KeyChain

PRIORITY_DEFAULT = 35  # upstream's, for blocks without a retention range


@dataclass
class PendingLoad:
    """The blocks of a prompt from `first` on, pinned in the host tier until they have been loaded or are not needed."""

    slots: list[int]
    first: int
    position: int  # tokens that the device had
    tokens: int  # tokens that the load adds
    job: int | None = None  # once the destinations are known
    reservation: int | None = None  # upstream's number, by which it releases it part by part; offload/reservations.py
    fetch: "PendingFetch | None" = None  # the part that comes from the remote tier first
    is_short: bool = False  # the load brings less than was promised
    is_outdated: bool = False  # the weights have changed since

    @property
    def end(self) -> int:
        return self.position + self.tokens

    def empty(self, index: TierIndex) -> None:
        """Let go of it: nothing needs these blocks."""
        index.unpin(self.slots)
        self.slots = []
        if self.fetch is not None:
            index.abandon(self.fetch.slots)
            self.fetch = None


@dataclass
class PendingFetch:
    """The blocks from `first` on, in claimed slots of the host tier that are about to be filled."""

    slots: list[int]
    first: int
    keys: tuple[bytes, ...]


@dataclass
class LiveRequest:
    """Its leading blocks are a sequence of the host tier's index, which keeps their tokens; the rest are here."""

    request_id: int
    index: TierIndex
    sequence: int
    tail: list[int]  # tokens behind those that the index has
    had: int  # blocks that the device had when it came
    identity: Identity = field(default_factory=Identity)
    blocks: list[list[int]] = field(default_factory=list)  # of the device: for each layer group, in order of position
    # After preemption, upstream may report additions to blocks that no longer exist. The list is taken again when the
    # request is reported as a new one, or ends; until then nothing is appended to this one.
    frozen: bool = False
    grown: int = 0  # blocks that it may have reached since, while it was frozen
    priorities: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose kernels have been given to the device
    indexed: int = 0  # tokens that the index has
    covered: int = 0  # blocks that are in the host tier, on their way, or not worth storing
    worth: int = sys.maxsize  # blocks from this one on are not worth it
    due: int = field(init=False)  # tokens that must be computed before there is more to cover
    load: PendingLoad | None = None
    is_counted: bool = True  # what it found; for a reservation, once upstream has accepted some of it
    chain: "KeyChain | None" = None  # names its blocks if they go to the remote tier as well
    users: int = 0  # users of the sequence beyond the end of the request
    is_over: bool = False

    def __post_init__(self) -> None:
        self.cover(0)

    def take(self, tokens: Sequence[int], blocks: list[list[int]]) -> None:
        """Take over what upstream reports: it is complete."""
        self.tail, self.blocks, self.frozen = list(tokens[self.indexed :]), blocks, False
        if len(tokens) < self.indexed:
            self.worth = 0  # upstream has taken tokens back, and does not report which others it may have put there

    def extend(self, tokens: Iterable[int], blocks: list[list[int]], priorities: Iterable[int] = ()) -> None:
        """`priorities` are those of the added blocks, empty if the request has no retention ranges."""
        if self.frozen:
            return
        self.tail.extend(tokens)
        self.priorities.extend(priorities)
        self.blocks = self.blocks or [[] for _ in blocks]
        for known, added in zip(self.blocks, blocks, strict=True):
            known.extend(added)

    @property
    def length(self) -> int:
        """The number of tokens that are known."""
        return self.indexed + len(self.tail)

    @property
    def allocated(self) -> int:
        """The number of blocks that every layer group has."""
        return min(map(len, self.blocks), default=0)

    def whole_blocks(self) -> int:
        """The number of blocks whose tokens are all known and computed."""
        known = self.indexed + len(self.tail)
        return min(min(self.computed, known) // self.index.tokens_per_block, self.allocated)

    def index_blocks(self, blocks: int) -> None:
        """The index has at least these from now on."""
        more = blocks * self.index.tokens_per_block - self.indexed
        if more > 0:
            self.index.extend(self.sequence, self.tail[:more])
            if self.chain is not None:
                self.chain.extend(self.tail[:more])
            del self.tail[:more]
            self.indexed += more

    def cover(self, blocks: int) -> None:
        self.covered = blocks
        self.due = (blocks + 1) * self.index.tokens_per_block

    def worth_storing(self, blocks: int, priority_min: int) -> int:
        """Count the leading blocks worth storing: all `covered`, and the next ones up to the first of low priority."""
        if not self.priorities and priority_min <= PRIORITY_DEFAULT:
            return min(blocks, self.worth)
        for at in range(self.covered, min(blocks, self.worth)):
            priority = self.priorities[at] if at < len(self.priorities) else PRIORITY_DEFAULT
            if priority < priority_min:
                self.worth = at
                break
        return min(blocks, self.worth)

    def priorities_until(self, end: int) -> list[int]:
        """The priorities of the blocks behind the covered ones. Empty if the request has no retention ranges."""
        if not self.priorities:
            return []
        told = self.priorities[self.covered : end]
        return told + [PRIORITY_DEFAULT] * (end - self.covered - len(told))

    def claim(self, end: int) -> TierClaim | None:
        """Slots for those of its first `end` blocks that the host tier lacks. None if another job fills one of them."""
        self.index_blocks(end)
        return self.index.claim(self.sequence, end, known=self.had, priorities=self.priorities_until(end))

    def may_have_grown(self, tokens: int) -> bool:
        """The request grows while it is frozen. Upstream does not report into which blocks, up to as many as it had."""
        reach = -(-tokens // self.index.tokens_per_block)
        is_new = reach > max(self.grown, self.allocated)
        if is_new:
            self.grown = reach
        return is_new

    def part(self, first: int, end: int) -> tuple[int, ...]:
        return part_of(self.blocks, first, end)

    def let_go_of_load(self) -> None:
        """Let go of what it was promised. If that is on its way, it is held until it has arrived."""
        load, self.load = self.load, None
        if load is not None and load.job is None:
            load.empty(self.index)

    def outlive_weights(self) -> None:
        """Its blocks stay its own: some were computed with weights that are gone, and the others follow from them."""
        self.worth, self.chain = 0, None
        if self.load is not None:
            self.load.is_outdated = True

    def close(self) -> None:
        """Nothing more will be looked for or stored."""
        self.let_go_of_load()
        self.is_over = True
        self._close_unused()

    def hold(self) -> None:
        """The sequence stays until as many have let it go."""
        self.users += 1

    def let_go(self) -> None:
        self.users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self.is_over and not self.users:
            self.index.close(self.sequence)


def part_of(blocks: list[list[int]], first: int, end: int) -> tuple[int, ...]:
    """Blocks `first` to `end` of one layer group, then of the next, in the order of jobs."""
    if len(blocks) == 1:
        return tuple(blocks[0][first:end])
    return tuple([block for group in blocks for block in group[first:end]])


def added_blocks(data: Any) -> list[list[int]]:
    """Return the blocks that a report adds, by layer group: mostly none. With several groups, upstream leaves the flat
    list empty."""
    by_group = getattr(data, "new_block_ids_by_layer_group", None)
    if by_group and len(by_group) > 1:
        return blocks_by_group(by_group)
    return [flat(data.new_block_ids)] if data.new_block_ids else []


def tokens_computed(request: Any, live: LiveRequest) -> int:
    """Count the computed tokens of a request that ends: up to its position in the prompt, then all but the last."""
    position = getattr(request, "context_current_position", None)
    prompt = getattr(request, "prompt_len", None)
    if position is None or prompt is None:
        return live.computed
    return position if position < prompt else live.length - 1
