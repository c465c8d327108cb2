"""The policy of the tiers behind the device: which blocks are found, where new ones go, and what an end changes.

The nearest tier comes first, and each is asked about what those before it do not have, or have not taken. Nothing here
knows of transfers, clocks or upstream: the scheduler side makes jobs of what comes out, and `replay` lets every
transfer end at once.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from trtllm_kvfix.native import TierIndex


class LeadingBlocks(Protocol):
    """The leading blocks of a request, as tiers are asked about them."""

    sequence: int  # of the host tier's index
    had: int  # blocks that the device had when it came
    covered: int  # blocks that need no place any more

    @property
    def length(self) -> int:
        """The number of tokens that are known."""
        ...

    def index_blocks(self, blocks: int) -> None:
        """Have the index know the tokens of so many blocks."""
        ...

    def prompt_blocks_from(self, first: int) -> int: ...
    def priorities_until(self, end: int) -> list[int]:
        """The priorities of the blocks behind the covered ones, or nothing if all are alike."""
        ...


P = TypeVar("P", bound=LeadingBlocks)
P_contra = TypeVar("P_contra", bound=LeadingBlocks, contravariant=True)


@dataclass
class PendingFetch:
    """The blocks from `first` on, in claimed slots of the host tier that are about to be filled."""

    slots: list[int]
    first: int
    keys: tuple[bytes, ...]


@dataclass
class PendingLoad:
    """The blocks of a prompt from `first` on, pinned in the host tier until they have been loaded or are not needed."""

    slots: list[int]
    first: int
    position: int  # tokens that the device had
    tokens: int  # tokens that the load adds
    job: int | None = None  # once the destinations are known
    since: float = 0.0  # when they were
    reservation: int | None = None  # upstream's number, by which it releases it part by part
    fetch: PendingFetch | None = None  # the part that comes from the store first
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


class Taken(NamedTuple):
    """The blocks of a request that a tier takes, from `first` on."""

    first: int
    slots: tuple[int, ...]
    left: int = 0  # blocks behind them that it should have had
    is_declined: bool = False  # those were not worth a place
    is_staged: bool = False  # they only pass through the host pool


NOTHING = Taken(0, ())


class Tier(Protocol[P_contra]):
    def find(self, prefix: P_contra, position: int, found: PendingLoad | None) -> PendingLoad | None:
        """Add what this tier has of a prompt, of which the device has `position` tokens, to what was `found`."""
        ...

    def take(self, prefix: P_contra, first: int, end: int) -> Taken | None:
        """Claim slots for the blocks from `first` to `end`. None: try later, others bring the same blocks."""
        ...


def always(_tokens: int) -> bool:
    return True


class HostPoolTier(Generic[P]):
    """The host pool, as its index knows it."""

    def __init__(self, index: TierIndex, blocks_min: int, is_worth: Callable[[int], bool] = always) -> None:
        """is_worth: whether so many tokens come sooner than they are computed."""
        self._index, self._blocks_min, self._is_worth = index, blocks_min, is_worth

    def find(self, prefix: P, position: int, found: PendingLoad | None) -> PendingLoad | None:
        del found
        index, size = self._index, self._index.tokens_per_block
        prefix.index_blocks((prefix.length - 1) // size)  # never the block with the last token: it is always computed
        held, first = index.held(prefix.sequence), position // size
        gained = held * size - position
        if held - first < self._blocks_min or gained <= 0 or not self._is_worth(gained):
            return None
        return PendingLoad(index.pin(prefix.sequence, first, held), first, position, gained)

    def take(self, prefix: P, first: int, end: int) -> Taken | None:
        prefix.index_blocks(end)
        claim = self._index.claim(prefix.sequence, end, known=prefix.had, priorities=prefix.priorities_until(end))
        if claim is None:
            return None
        slots, begin = tuple(claim.slots), claim.first
        behind = begin + len(slots)
        return Taken(begin, slots) if behind == end else Taken(begin, slots, end - max(behind, first), claim.declined)


STAGING_SHARE = 8  # of the host pool, one slot in so many


def staging_slots(slots: int) -> int:
    """Counts the staging slots of a pool of so many. The host tier has the rest, at least one."""
    return min(max(slots // STAGING_SHARE, 1), slots - 1)


class Staging:
    """The last slots of the host pool: through them, blocks go to the store that the host tier does not take.

    The store is larger than the host tier, so what is not worth a place here may be worth one there. The index of the
    host tier knows nothing of these slots: a block has one from the plan of its store until its put is over, and nobody
    finds it meanwhile.

    One thread uses it.
    """

    def __init__(self, slots: int) -> None:
        self.first = slots - staging_slots(slots)
        self._free = list(range(self.first, slots))
        self._all = len(self._free)

    def __contains__(self, slot: int) -> bool:
        return slot >= self.first

    def take(self, count: int, of_prompt: int) -> tuple[int, ...]:
        """Fewer than `count` if there are no more. Blocks behind the prompt's leave half of the slots free."""
        for_answers = max(len(self._free) - self._all // 2, 0)
        count = max(min(count, of_prompt), min(count, for_answers))
        taken, self._free = self._free[:count], self._free[count:]
        return tuple(taken)

    def give_back(self, slots: tuple[int, ...]) -> None:
        self._free.extend(slots)


class StoreBehind(Protocol[P_contra]):
    """A store behind the host tier. What comes from it, and what goes there, passes through the host pool."""

    def share(self, slots: int) -> Staging:
        """The part of a pool of so many slots that is kept for what the store alone takes."""
        ...

    def reach(self, prefix: P_contra, held: int, limit: int) -> int:
        """Up to which block it has a prompt. The host tier holds the first ones; behind `limit` nothing is asked."""
        ...

    def is_worth(self, blocks: int, tokens: int) -> bool:
        """Whether so many blocks come sooner than so many tokens are computed."""
        ...

    def names(self, prefix: P_contra, first: int, end: int) -> tuple[bytes, ...]: ...
    def takes(self, prefix: P_contra) -> bool:
        """Whether blocks of this request go there."""
        ...


class StoreTier(Generic[P]):
    def __init__(self, index: TierIndex, store: StoreBehind[P], staging: Staging, blocks_min: int) -> None:
        self._index, self._store, self._staging, self._blocks_min = index, store, staging, blocks_min

    def find(self, prefix: P, position: int, found: PendingLoad | None) -> PendingLoad | None:
        """Claim slots for what the store has. Where there are too few, or others fill them now, it adds nothing."""
        index, size = self._index, self._index.tokens_per_block
        first, held, limit = position // size, index.held(prefix.sequence), (prefix.length - 1) // size
        begin = max(held, first)
        if limit - begin < self._blocks_min:
            return found
        end = min(self._store.reach(prefix, held, limit), limit)
        if end - begin < self._blocks_min:
            return found
        if not self._store.is_worth(end - held, end * size - max(position, held * size)):
            return found
        claim = index.claim(prefix.sequence, end, reused=True)  # it comes back, so it is worth its place
        if claim is None or not claim.slots:
            return found
        end = claim.first + len(claim.slots)
        gained = end * size - position
        # A block before it may be here, and bad: nobody reads beyond it.
        if claim.first > held or end - first < self._blocks_min or gained <= 0:
            index.abandon(claim.slots)
            return found
        load = found or PendingLoad(index.pin(prefix.sequence, first, claim.first), first, position, 0)
        load.tokens = gained
        load.fetch = PendingFetch(claim.slots, claim.first, self._store.names(prefix, claim.first, end))
        return load

    def take(self, prefix: P, first: int, end: int) -> Taken:
        """Stage the blocks. Those that the device had when the request came have been put before."""
        begin = max(first, prefix.had)
        if begin >= end or not self._store.takes(prefix):
            return NOTHING
        slots = self._staging.take(end - begin, prefix.prompt_blocks_from(begin))
        return Taken(begin, slots, end - begin - len(slots), is_staged=True)


class TierPolicy(Generic[P]):
    """A list of tiers. The first is the host tier, and what is found in another comes through it."""

    def __init__(self, index: TierIndex, tiers: Sequence[Tier[P]]) -> None:
        self.index, self._tiers = index, tiers
        self._slots = index.slots  # of the host pool; others are staging slots

    def find(self, prefix: P, position: int) -> PendingLoad | None:
        """Pin, and claim, what the tiers add to the `position` tokens that the device has of a prompt."""
        found: PendingLoad | None = None
        for tier in self._tiers:
            found = tier.find(prefix, position, found)
        return found

    def claim(self, prefix: P, end: int) -> list[Taken] | None:
        """Claim slots for the blocks up to `end` that are not covered: for each tier what those before it have left
        out. None: try later."""
        taken: list[Taken] = []
        first = prefix.covered
        for tier in self._tiers:
            one = tier.take(prefix, first, end)
            if one is None:
                return None
            taken.append(one)
            if not one.left:
                break
            first = end - one.left
        return taken

    def stored(self, slots: tuple[int, ...], *, well: bool) -> None:
        """A store is over. Staged blocks stay where they are until the store behind has them."""
        if slots[0] < self._slots:
            (self.index.commit if well else self.index.abandon)(slots)

    def fetched(self, slots: Sequence[int], come: int, unsure: Collection[int] = ()) -> None:
        """A fetch is over, and so many leading blocks have come. The `unsure` slots may be written until `freed`."""
        self.index.set_aside(slots[come:])
        self.index.abandon([slot for slot in slots[come:] if slot not in unsure])
        self.index.commit(slots[:come])

    def freed(self, slots: Sequence[int]) -> None:
        self.index.abandon(slots)

    def loaded(self, slots: Sequence[int], bad: Sequence[int] = ()) -> None:
        """A load is over. Nobody finds the bad ones again."""
        self.index.condemn(bad)
        self.index.unpin(slots)


def policy_of(
    slots: int,
    tokens_per_block: int,
    admission: str,
    *,
    blocks_min: int = 1,
    is_worth: Callable[[int], bool] = always,
    store: StoreBehind[P] | None = None,
    store_blocks_min: int = 1,
) -> TierPolicy[P]:
    """The policy for a host pool of so many slots, with a store behind it or without."""
    if store is None:
        index = TierIndex(slots, tokens_per_block, admission=admission)
        return TierPolicy(index, [HostPoolTier[P](index, blocks_min, is_worth)])
    staging = store.share(slots)
    index = TierIndex(staging.first, tokens_per_block, admission=admission)
    return TierPolicy(
        index, [HostPoolTier[P](index, blocks_min, is_worth), StoreTier(index, store, staging, store_blocks_min)]
    )
