"""The records of the model, and the three moves that everything else is made of: `refresh`, `drop` and `free`."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from struct import pack

from .tier_admission import Recent
from .values import TIERS, Config, Extras, Prefix, Request, RequestStats, RootKey, Tier, Tokens, WindowShape


def raw(extras: Extras) -> bytes:
    return b"".join(pack("<qqQ", begin, end, len(digest)) + digest for begin, end, digest in extras)


@dataclass(eq=False)
class Root:
    """A prompt begins at a root. In a window a root also holds what comes before each block, there or not."""

    key: RootKey
    before: Prefix = ()
    children: list["Block"] = field(default_factory=list)


@dataclass(eq=False)
class Block:
    serial: int
    priority: int
    duration_ms: int | None = None
    deadline_ms: int | None = None
    clock_started_at: int = 0
    # Content, as it was when the block last entered the tree.
    parent: "Root | Block | None" = None
    tokens: Tokens = ()
    extras: Extras = ()
    children: list["Block"] = field(default_factory=list)
    # Per tier: the serial of this tenancy of a slot, and what holds it.
    slots: dict[Tier, int | None] = field(default_factory=lambda: {"primary": None, "host": None})
    in_flight: dict[Tier, bool] = field(default_factory=lambda: {"primary": False, "host": False})
    pins: dict[Tier, int] = field(default_factory=lambda: {"primary": 0, "host": 0})
    locks: dict[Tier, int] = field(default_factory=lambda: {"primary": 0, "host": 0})
    refs: int = 0
    keepers: int = 0  # suspended sequences
    kept_in: Tier = "host"
    claims: int = 0  # claims and sources of the batch that is being applied
    cached_at: int | None = None
    entered_group: str | None = None
    entered_at: int = 0
    undelivered: bool = False
    outside: bool = False  # whoever held it last went on without it
    asked_again: bool = False  # by a second request, as far as is remembered

    @property
    def in_tree(self) -> bool:
        return self.parent is not None

    def settled(self, tier: Tier) -> bool:
        return self.slots[tier] is not None and not self.in_flight[tier]

    @property
    def usable(self) -> bool:
        return self.settled("primary") or (self.slots["primary"] is None and self.settled("host"))

    def held(self, tier: Tier) -> bool:
        """Whether something other than the tree keeps the slot."""
        # A block that is claimed while only in host must stay there until it has been copied up.
        in_use = tier == "primary" or self.slots["primary"] is None
        owned = in_use and (self.refs > 0 or self.claims > 0)
        return owned or self.in_flight[tier] or self.pins[tier] > 0 or self.locks[tier] > 0 or self.kept(tier)

    def kept(self, tier: Tier) -> bool:
        return self.keepers > 0 and self.kept_in == tier

    @property
    def at_rest(self) -> bool:
        """Whether one owner alone keeps the slot in primary."""
        others = self.pins["primary"] or self.locks["primary"] or self.kept("primary")
        return self.refs == 1 and not (others or self.in_flight["primary"])

    @property
    def host_group(self) -> str | None:
        """The group of host copies in which eviction would find this one; None if it may not be touched."""
        untouchable = self.in_flight["host"] or self.pins["host"] > 0 or self.locks["host"] > 0 or self.kept("host")
        if self.slots["host"] is None or not self.in_tree or untouchable:
            return None
        if self.slots["primary"] is not None:
            return "also_in_primary"
        return None if self.refs or self.claims else "only_in_host"

    def spelled(self) -> tuple[RootKey, Prefix]:
        """The whole prefix that it ends."""
        content = ((self.tokens, self.extras),)
        if isinstance(self.parent, Root):
            return self.parent.key, (*self.parent.before, *content)
        assert self.parent is not None
        key, before = self.parent.spelled()
        return key, (*before, *content)

    def by_generation(self) -> list["Block"]:
        out = [self]
        for each in out:
            out += sorted(each.children, key=lambda child: (raw(child.extras), child.tokens))
        return out

    def family(self) -> Iterator["Block"]:
        yield self
        for child in self.children:
            yield from child.family()


@dataclass(eq=False)
class Column:
    """One position of a sequence's block list in one window: one block shared by the beams, or one per beam."""

    blocks: list[Block]
    left: bool = False
    doubtful: bool = False  # it left before its bytes had come

    @property
    def unsure(self) -> bool:
        """Whether its bytes have not come, or may not have."""
        missing = any(block.undelivered or block.in_flight["primary"] for block in self.blocks)
        return self.doubtful if self.left else missing


@dataclass
class Room:
    """A sequence whose prompt is not reserved to its end has this room beside its blocks, in one window."""

    kept: int = 0
    most: int | None = None  # blocks of its own and slots kept; None if that is the whole prompt
    rolls: bool = False  # less is kept than the prompt needs: slots of blocks that leave come back


@dataclass(eq=False)
class Sequence:
    request: Request
    length: int
    known: list[int]
    tokens_reused: int
    tokens_computed: int
    columns: list[list[Column]]  # [window][position]
    rooms: list[Room]  # [window]
    claimed: int  # leading blocks that are others' too
    stats: RequestStats
    suspended: bool = False

    def first_unsure(self) -> int:
        """Nothing from this position on is stored in any window: it may be computed from bytes that never came."""
        unsure = [position for row in self.columns for position, column in enumerate(row) if column.unsure]
        return min([*unsure, self.length])

    def held_blocks(self) -> list[Block]:
        return [block for row in self.columns for column in row if not column.left for block in column.blocks]


class Newcomers:
    """The share of a full host tier, in millionths, of blocks for which no second request has asked."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.share = 500_000
        self.step = max(200, 1_000_000 // max(slots, 1))
        self.gone = (Recent(slots // 16), Recent(slots // 16))  # newcomers, and others

    def missed(self, prefix: Hashable) -> None:
        newcomers, others = (max(len(gone.young) + len(gone.old), 1) for gone in self.gone)
        if prefix in self.gone[0]:
            self.share = min(self.share + self.step * others // newcomers, 1_000_000)
        elif prefix in self.gone[1]:
            self.share = max(self.share - self.step * newcomers // others, 0)


@dataclass(eq=False)
class Window:
    shape: WindowShape
    blocks: list[Block] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)
    gone: Recent = field(init=False)  # prefixes whose last block was dropped
    newcomers: Newcomers = field(init=False)

    def __post_init__(self) -> None:
        self.gone = Recent(self.shape.primary + self.shape.host)
        self.newcomers = Newcomers(self.shape.host)

    def root(self, key: RootKey, before: Prefix = ()) -> Root:
        for root in self.roots:
            if root.key == key and root.before == before:
                return root
        self.roots.append(Root(key, before))
        return self.roots[-1]

    def below(self, block: Block) -> "Root | Block":
        """The parent of what follows the block: in a window the prefix, which stays when the block goes."""
        if self.shape.size is None:
            return block
        assert isinstance(block.parent, Root)
        return self.root(block.parent.key, (*block.parent.before, (block.tokens, block.extras)))

    def children(self, block: Block) -> list[Block]:
        return self.below(block).children if block.in_tree else []

    def tree(self) -> list[Block]:
        return [block for root in self.roots for top in root.children for block in top.family()]

    def capacity(self, tier: Tier) -> int:
        return self.shape.primary if tier == "primary" else self.shape.host

    def free(self, tier: Tier) -> int:
        return self.capacity(tier) - sum(block.slots[tier] is not None for block in self.blocks)

    def cached(self) -> list[Block]:
        return [block for block in self.blocks if block.cached_at is not None]


@dataclass(eq=False)
class Transfer:
    kind: str
    window: Window
    source: Block
    target: Block
    slot_source: int
    slot_target: int
    tokens: int

    @property
    def tier_source(self) -> Tier:
        return "host" if self.kind == "onboard" else "primary"

    @property
    def tier_target(self) -> Tier:
        return "host" if self.kind == "offload" else "primary"


@dataclass(eq=False)
class State:
    config: Config
    windows: list[Window]
    sequences: dict[int, Sequence] = field(default_factory=dict)
    queued: list[Transfer] = field(default_factory=list)
    tickets: dict[int, list[Transfer]] = field(default_factory=dict)
    now_ms: int = 0
    serial: int = 0
    # By name, of the whole life, of the iteration that ended last, and since.
    total: dict[str, int] = field(default_factory=dict)
    iteration: dict[str, int] = field(default_factory=dict)
    current: dict[str, int] = field(default_factory=dict)

    def tick(self) -> int:
        """A number greater than any before: a stamp, or a serial."""
        self.serial += 1
        return self.serial

    def bump(self, counter: str, by: int = 1) -> None:
        for counts in (self.total, self.current):
            counts[counter] = counts.get(counter, 0) + by

    def window_of(self, block: Block) -> Window | None:
        return next((window for window in self.windows if block in window.blocks), None)

    def queue_transfer(
        self, kind: str, window: Window, source: tuple[Block, int], target: tuple[Block, int], tokens: int
    ) -> None:
        transfer = Transfer(kind, window, source[0], target[0], source[1], target[1], tokens)
        target[0].in_flight[transfer.tier_target] = True
        if kind != "offload":  # the next owner of an offload's source writes after the copy has run
            source[0].locks[transfer.tier_source] += 1
        self.queued.append(transfer)
        self.refresh(source[0])
        self.refresh(target[0])

    def refresh(self, block: Block) -> None:
        """Follows any change of owners, pins, locks, flight or slots: the block joins queues, leaves them or is
        freed."""
        if block.held("primary") or block.slots["primary"] is None:
            block.cached_at = None
        elif block.in_tree and block.cached_at is None:
            block.cached_at = self.tick()
            if block.duration_ms is not None and block.deadline_ms is None:
                block.deadline_ms = self.now_ms + block.duration_ms
                block.clock_started_at = self.tick()
        if block.host_group != block.entered_group:
            block.entered_group = block.host_group
            block.entered_at = self.tick()
        if not block.in_tree:
            self.free_private(block)

    def set_retention(self, block: Block, priority: int, duration_ms: int | None) -> None:
        """Another priority makes the block the newest of its queues; the clock stands until it is cached again."""
        if block.priority != priority:
            block.priority = priority
            block.entered_at = self.tick()
            block.cached_at = None if block.cached_at is None else block.entered_at
        block.duration_ms, block.deadline_ms = duration_ms, None

    def free_private(self, block: Block) -> None:
        for tier in TIERS:
            if block.slots[tier] is not None and not block.held(tier):
                block.slots[tier] = None
                block.cached_at = None if tier == "primary" else block.cached_at
        window = self.window_of(block)
        if window is not None and not any(block.slots.values()):
            window.blocks.remove(block)

    def free(self, block: Block, tier: Tier) -> None:
        assert not block.held(tier)
        block.slots[tier] = None
        self.refresh(block)

    def drop(self, block: Block) -> None:
        """Removes the block and all below it from the tree, and remembers which they were."""
        window = self.window_of(block)
        assert window is not None
        for each in reversed(block.by_generation()):
            if len(each.tokens) == self.config.tokens_per_block:
                window.gone.note(each.spelled())
                window.newcomers.gone[each.asked_again].note(each.spelled())
        self.take_out(block)

    def take_out(self, block: Block) -> None:
        """Removes the block and all below it from the tree; what nothing holds is freed."""
        for each in list(block.family()):
            assert each.parent is not None
            each.parent.children.remove(each)
            each.parent = None
            each.deadline_ms = None
            self.refresh(each)
