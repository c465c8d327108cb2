"""Candidates for the host tier's admission, and what no policy can pass, over requests whose GPU hits are known.

A block is a number that spells its whole prefix. Where one is stored, all before it are there; so what a tier can bring
ends with the first block that it lacks. The bound alone is excused from that. All store what a request has computed,
prompt and answer, when it ends, and nothing that the GPU had and the tier lacks, nor what follows it: as the connector.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from trtllm_kvfix.tools.replay.engine import Workload

NEVER = 1 << 60
Blocks: TypeAlias = list[int]


class Asked(NamedTuple):
    """A request. All of its blocks, how many leading ones it may reuse, and how many of these the GPU had."""

    blocks: Blocks
    reusable: int
    on_gpu: int


def asked_for(workload: Workload, tokens_per_block: int, on_gpu: Sequence[int]) -> list[Asked]:
    """`on_gpu`: tokens of each request that the GPU had."""
    numbers: dict[tuple[int, bytes], int] = {}
    out = []
    for index, request in enumerate(workload.requests):
        tokens = np.concatenate((workload.book.prompt(index), workload.book.answer(index)))[:-1]
        blocks, before = Blocks(), -1
        for at in range(0, len(tokens) - tokens_per_block + 1, tokens_per_block):
            content = tokens[at : at + tokens_per_block].tobytes()
            before = numbers.setdefault((before, content), len(numbers))
            blocks.append(before)
        reusable = (request.input_length - 1) // tokens_per_block
        out.append(Asked(blocks, min(reusable, len(blocks)), on_gpu[index] // tokens_per_block))
    return out


class Lru:
    """Everything is stored, and the one asked for the longest ago goes; a block goes after those that follow it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.here: OrderedDict[int, None] = OrderedDict()
        self.stored = 0

    def found(self, asked: Asked) -> int:
        """Counts the leading blocks that are here. They are the newest from now on."""
        count = self.leading(asked.blocks[: asked.reusable])
        self.touch(asked.blocks[:count])
        return count

    def leading(self, blocks: Blocks) -> int:
        return next((at for at, block in enumerate(blocks) if block not in self.here), len(blocks))

    def touch(self, blocks: Blocks) -> None:
        for block in reversed(blocks):
            self.here.move_to_end(block)

    def worth(self, asked: Asked, first: int) -> int:
        """Counts the leading blocks that are stored, of those from `first` on that are not here."""
        del first
        return len(asked.blocks)

    def store(self, asked: Asked, first: int) -> None:
        end = min(self.worth(asked, first), self.slots)
        if first < asked.on_gpu:
            return
        missing = [block for block in asked.blocks[first:end] if block not in self.here]
        while len(self.here) + len(missing) > self.slots:
            self.here.popitem(last=False)
        self.here.update(dict.fromkeys(reversed(missing)))
        self.touch([block for block in asked.blocks[:end] if block in self.here])
        self.stored += len(missing)


class SecondTouch(Lru):
    """A full tier takes what had been asked for before, among the last four times as many as it holds."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.history: OrderedDict[int, None] = OrderedDict()

    def worth(self, asked: Asked, first: int) -> int:
        before = [self.note(block) for block in asked.blocks]
        free = self.slots - len(self.here)
        at = first
        while at < len(asked.blocks) and (before[at] or at - first < free):
            at += 1
        return at

    def note(self, block: int) -> bool:
        before = block in self.history
        self.history[block] = None
        self.history.move_to_end(block)
        if len(self.history) > 4 * self.slots:
            self.history.popitem(last=False)
        return before


class TinyLfu(Lru):
    """A block gets in if it was asked for more often than the one that would go; counts are halved now and then."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.counts: Counter[int] = Counter()
        self.counted = 0

    def worth(self, asked: Asked, first: int) -> int:
        self.counts.update(asked.blocks)
        self.counted += len(asked.blocks)
        if self.counted > 10 * self.slots:
            self.counted = 0
            self.counts = Counter({block: count // 2 for block, count in self.counts.items() if count > 1})
        victims = iter(self.here)
        free = self.slots - len(self.here)
        for at in range(first, len(asked.blocks)):
            if at - first >= free and self.counts[asked.blocks[at]] <= self.counts[next(victims, -1)]:
                return at
        return len(asked.blocks)


class S3Fifo(Lru):
    """Newcomers pass a tenth of the tier first; those that go from there unused are remembered, to skip it later."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.uses: dict[int, int] = {}
        self.small: OrderedDict[int, None] = OrderedDict()
        self.main: OrderedDict[int, None] = OrderedDict()
        self.ghosts: OrderedDict[int, None] = OrderedDict()

    def leading(self, blocks: Blocks) -> int:
        return next((at for at, block in enumerate(blocks) if block not in self.uses), len(blocks))

    def touch(self, blocks: Blocks) -> None:
        for block in blocks:
            self.uses[block] = min(3, self.uses[block] + 1)

    def store(self, asked: Asked, first: int) -> None:
        if first < asked.on_gpu:
            return
        for block in reversed(asked.blocks[first : self.slots]):
            if block in self.uses:
                continue
            while len(self.uses) >= self.slots:
                self.make_room()
            queue = self.main if self.ghosts.pop(block, NEVER) is None else self.small
            queue[block] = None
            self.uses[block] = 0
            self.stored += 1

    def make_room(self) -> None:
        if len(self.small) > self.slots // 10 or not self.main:
            block, _ = self.small.popitem(last=False)
            if self.uses[block]:
                self.uses[block] = 0
                self.main[block] = None
                return
            self.ghosts[block] = None
            if len(self.ghosts) > self.slots:
                self.ghosts.popitem(last=False)
        else:
            block, _ = self.main.popitem(last=False)
            if self.uses[block]:
                self.uses[block] -= 1
                self.main[block] = None
                return
        del self.uses[block]


class Prescient(Lru):
    """Stores what will come back, which it knows for each request, and evicts as LRU does."""

    def __init__(self, slots: int, comes_back: Sequence[int]) -> None:
        super().__init__(slots)
        self.comes_back = iter(comes_back)  # leading blocks of each request that another will ask for

    def worth(self, asked: Asked, first: int) -> int:
        del asked, first
        return next(self.comes_back)


class Tried(NamedTuple):
    blocks_found: list[int]  # of each request, beyond what the GPU had
    blocks_stored: list[int]


def tried(policy: Lru, requests: Sequence[Asked]) -> Tried:
    out = Tried([], [])
    for asked in requests:
        found, stored = policy.found(asked), policy.stored
        out.blocks_found.append(max(found - asked.on_gpu, 0))
        policy.store(asked, found)
        out.blocks_stored.append(policy.stored - stored)
    return out


def come_back(requests: Sequence[Asked]) -> list[int]:
    last: dict[int, int] = {}
    for at, asked in enumerate(requests):
        last.update(dict.fromkeys(asked.blocks[: asked.reusable], at))
    return [sum(last.get(block, -1) > at for block in asked.blocks) for at, asked in enumerate(requests)]


def bound(slots: int, requests: Sequence[Asked]) -> Tried:
    """Belady: of what the GPU will not have, the tier keeps what is asked for soonest. No prefix has to be whole."""
    upcoming: dict[int, int] = {}
    nexts = []
    for at in range(len(requests) - 1, -1, -1):
        asked = requests[at]
        nexts.append([upcoming.get(block, NEVER) for block in asked.blocks])
        upcoming.update(dict.fromkeys(asked.blocks[asked.on_gpu : asked.reusable], at))
    here: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    out = Tried([], [])
    for asked, soon in zip(requests, reversed(nexts), strict=True):
        out.blocks_found.append(sum(block in here for block in asked.blocks[asked.on_gpu : asked.reusable]))
        stored = 0
        for block, when in zip(asked.blocks, soon, strict=True):
            if when == NEVER:
                here.pop(block, None)
                continue
            stored += block not in here
            here[block] = when
            heapq.heappush(latest, (-when, block))
        while len(here) > slots:
            when, block = heapq.heappop(latest)
            if here.get(block) == -when:
                del here[block]
        out.blocks_stored.append(stored)
    return out


CANDIDATES: dict[str, Callable[[int], Lru]] = {
    "lru": Lru,
    "second touch": SecondTouch,
    "S3-FIFO": S3Fifo,
    "TinyLFU": TinyLfu,
}


class ExclusiveLru:
    """Gets each block when the GPU evicts it, and gives it back when it is asked for: no block is in both."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.here: OrderedDict[int, None] = OrderedDict()
        self.stored = 0

    def asked(self, blocks: Blocks, on_gpu: int, reusable: int) -> int:
        """Counts the blocks behind the GPU's that are here. All that are asked for are the GPU's from now on."""
        end = on_gpu
        while end < reusable and blocks[end] in self.here:
            end += 1
        for block in blocks:
            self.here.pop(block, None)
        return end - on_gpu

    def offered(self, block: int, *, before: bool) -> None:
        """`before`: the request that asked for it last was not the first."""
        if len(self.here) >= self.slots:
            if not self.takes(before=before):
                return
            self.here.popitem(last=False)
        self.here[block] = None
        self.stored += 1

    def takes(self, *, before: bool) -> bool:
        del before
        return True


class ExclusiveSecondTouch(ExclusiveLru):
    def takes(self, *, before: bool) -> bool:
        return before


class ExclusiveDuel(ExclusiveLru):
    """Second touch, unless a shadow that takes everything has found a thirty-second more than one that does so."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.shadows = ExclusiveSecondTouch(slots), ExclusiveLru(slots)
        self.found = [0, 0]
        self.takes_all = False
        self.round = self.left = slots // 4 + 256  # blocks until the next decision

    def asked(self, blocks: Blocks, on_gpu: int, reusable: int) -> int:
        for at, shadow in enumerate(self.shadows):
            self.found[at] += shadow.asked(blocks, on_gpu, reusable)
        self.left -= len(blocks)
        if self.left <= 0:
            self.left = self.round
            self.takes_all = self.found[1] * 32 > self.found[0] * 33
        return super().asked(blocks, on_gpu, reusable)

    def offered(self, block: int, *, before: bool) -> None:
        for shadow in self.shadows:
            shadow.offered(block, before=before)
        super().offered(block, before=before)

    def takes(self, *, before: bool) -> bool:
        return before or self.takes_all


class ExclusiveShare(ExclusiveLru):
    """New blocks have a share of the tier, which follows what comes back (`cpp/core/newcomers.h`)."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.share, self.step = 0.5, max(1 / slots, 0.0002)
        self.known: OrderedDict[int, None] = OrderedDict()  # `here` has the new ones
        self.gone: tuple[OrderedDict[int, None], ...] = OrderedDict(), OrderedDict()  # new ones, and others

    def asked(self, blocks: Blocks, on_gpu: int, reusable: int) -> int:
        end = on_gpu
        while end < reusable and (blocks[end] in self.here or blocks[end] in self.known):
            end += 1
        for block in blocks[end:]:
            self.missed(block)
        for block in blocks:
            self.here.pop(block, None)
            self.known.pop(block, None)
        return end - on_gpu

    def missed(self, block: int) -> None:
        new, others = (max(len(gone), 1) for gone in self.gone)
        if block in self.gone[0]:
            self.share = min(self.share + self.step * others / new, 1)
        elif block in self.gone[1]:
            self.share = max(self.share - self.step * new / others, 0)

    def offered(self, block: int, *, before: bool) -> None:
        if len(self.here) + len(self.known) >= self.slots:
            have_enough = len(self.known) <= (1 - self.share) * self.slots
            pushes_new = bool(self.here) and (have_enough or not self.known)
            if not before and (self.share < 1 / 32 or (not pushes_new and have_enough)):
                self.forget(block, asked_again=False)
                return
            self.forget((self.here if pushes_new else self.known).popitem(last=False)[0], asked_again=not pushes_new)
        (self.known if before else self.here)[block] = None
        self.stored += 1

    def forget(self, block: int, *, asked_again: bool) -> None:
        gone = self.gone[asked_again]
        gone[block] = None
        gone.move_to_end(block)
        if len(gone) > self.slots * 3 // 32:
            gone.popitem(last=False)


def evicted_to(
    policy: ExclusiveLru, requests: Sequence[Asked], gpu_blocks: int, offered_at: float = 1
) -> tuple[int, int, int]:
    """Blocks that requests found on the GPU and in the tier, and that the tier took. A GPU evicts the one asked for the
    longest ago, and a block after those that follow it.

    The tier is offered a block when it is evicted; or sooner, once that part of the GPU's blocks was asked for later.
    """
    young: OrderedDict[int, bool] = OrderedDict()  # whether each had been asked for before
    old: OrderedDict[int, None] = OrderedDict()  # offered, and still there
    history: OrderedDict[int, None] = OrderedDict()
    young_max = round(gpu_blocks * offered_at)
    on_gpu = from_host = 0
    for blocks, reusable, _ in requests:
        here = next((at for at in range(reusable) if blocks[at] not in young and blocks[at] not in old), reusable)
        on_gpu += here
        from_host += policy.asked(blocks, here, reusable)
        known = next((at for at, block in enumerate(blocks) if block not in history), len(blocks))
        for at in range(len(blocks) - 1, -1, -1):
            history[blocks[at]] = None
            history.move_to_end(blocks[at])
            old.pop(blocks[at], None)
            young[blocks[at]] = at < known
            young.move_to_end(blocks[at])
        while len(history) > 4 * (policy.slots + gpu_blocks):
            history.popitem(last=False)
        while len(young) > young_max:
            block, before = young.popitem(last=False)
            policy.offered(block, before=before)
            old[block] = None
        while len(young) + len(old) > gpu_blocks:
            old.popitem(last=False)
    return on_gpu, from_host, policy.stored


EXCLUSIVE: dict[str, Callable[[int], ExclusiveLru]] = {
    "exclusive LRU": ExclusiveLru,
    "exclusive second touch": ExclusiveSecondTouch,
    "exclusive duel": ExclusiveDuel,
}


class Touched(NamedTuple):
    """A request, as the tier beside the GPU sees it. `kinds` are those of its blocks."""

    asked: Asked
    kinds: list[int]


# Of the share of its prompt that was known, how often a block had been asked for, and how many tiers ago.
KindOf: TypeAlias = Callable[[float, int, float], int]


def by_warmth(known: float, times: int, since: float) -> int:
    """As the connector distinguishes blocks."""
    del since
    return 3 * bool(times) + (known >= 0.15) + (known >= 0.6)


def by_times_and_gaps(known: float, times: int, since: float) -> int:
    """Known ones by how often they had been asked for, and how long before."""
    if not times:
        return by_warmth(known, 0, since)
    return 3 + 4 * min(times.bit_length() - 1, 3) + (since >= 1) + (since >= 4) + (since >= 16)


def touched(requests: Sequence[Asked], gpu_blocks: int, slots: int, kind_of: KindOf) -> list[Touched]:
    """What is known of each block as it is asked for. Nothing is forgotten."""
    gpu: OrderedDict[int, None] = OrderedDict()
    seen: dict[int, tuple[int, int]] = {}  # how often, and when last
    now, out = 0, []
    for blocks, reusable, _ in requests:
        on_gpu = next((at for at in range(reusable) if blocks[at] not in gpu), reusable)
        known = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        share, kinds = known / max(len(blocks), 1), []
        for block in blocks:
            times, last = seen.get(block, (0, 0))
            kinds.append(kind_of(share, times, (now - last) / slots))
            seen[block] = times + 1, now
            now += 1
        for block in reversed(blocks):
            gpu[block] = None
            gpu.move_to_end(block)
        while len(gpu) > gpu_blocks:
            gpu.popitem(last=False)
        out.append(Touched(Asked(blocks, reusable, on_gpu), kinds))
    return out


BUCKETS = 38  # of ages, as in `cpp/core/reuse_ages.h`
AGES_MAX = 2048  # units; the last bucket has no end
WIDTHS = np.array([4.0, *(2.0 ** ((bucket - 1) // 4) for bucket in range(1, BUCKETS))])


class Told:
    """A tier that stores what is computed, or asked for while the GPU has it, and has been told how many blocks of each
    kind are asked for again at which age. It keeps those whose slots bring most by that."""

    def __init__(self, slots: int, requests: Sequence[Touched]) -> None:
        self.slots, self.requests = slots, requests
        self.unit = max(slots // 128, 1)
        self.edges = np.cumsum(WIDTHS)[:-1] * self.unit
        self.worth = self.learned()
        self.least = np.minimum.accumulate(self.worth, axis=1)
        self.here: dict[int, tuple[int, int, int]] = {}  # kind, when asked for, and its turn among others of the kind
        self.parents: dict[int, int] = {}
        self.children: Counter[int] = Counter()
        self.leaves: list[list[tuple[int, int]]] = [[] for _ in self.worth]
        self.turn = self.stored = 0

    def bucket(self, age: int) -> int:
        return int(np.searchsorted(self.edges, age, side="right"))

    def learned(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        kinds = 1 + max(max(each.kinds, default=0) for each in self.requests)
        reused, left = np.zeros((kinds, BUCKETS)), np.zeros((kinds, BUCKETS))
        last: dict[int, tuple[int, int]] = {}
        now = 0
        for (blocks, _, on_gpu), of in self.requests:
            for at, block in enumerate(blocks):
                if block in last:
                    since, kind = last[block]
                    is_late = now - since > AGES_MAX * self.unit
                    (left if at < on_gpu or is_late else reused)[kind, self.bucket(now - since)] += 1
                last[block] = now, of[at]
                now += 1
        for _since, kind in last.values():
            left[kind, -1] += 1  # nobody asks again
        both = reused + left
        risked = both[:, ::-1].cumsum(axis=1)[:, ::-1] - left / 2
        chances = reused / np.maximum(risked, 1)
        return np.array(
            [[best_rate(of[begin:].tolist(), WIDTHS[begin:].tolist()) for begin in range(BUCKETS)] for of in chances]
        )

    def found(self) -> int:
        """Counts the blocks that requests found here and not on the GPU."""
        total = now = 0
        for (blocks, reusable, on_gpu), kinds in self.requests:
            held = next((at for at, block in enumerate(blocks) if block not in self.here), len(blocks))
            total += max(min(held, reusable) - on_gpu, 0)
            for at in range(held - 1, -1, -1):
                self.enter(blocks[at], kinds[at], now + at)
            now += len(blocks)
            for at in range(held, len(blocks)):
                if not self.make_room(kinds[at], now, blocks[at - 1] if at else -1):
                    break
                self.parents[blocks[at]] = blocks[at - 1] if at else -1
                self.children[self.parents[blocks[at]]] += 1
                self.enter(blocks[at], kinds[at], now)
                self.stored += 1
        return total

    def enter(self, block: int, kind: int, now: int) -> None:
        self.turn += 1
        self.here[block] = kind, now, self.turn
        heapq.heappush(self.leaves[kind], (self.turn, block))

    def make_room(self, kind: int, now: int, parent: int) -> bool:
        if len(self.here) < self.slots:
            return True
        heads = [head for leaves in self.leaves if (head := self.head(leaves, parent)) is not None]
        if not heads:
            return False
        ages = {block: self.bucket(now - self.here[block][1]) for block in heads}
        victim = min(heads, key=lambda block: (self.least[self.here[block][0], ages[block]], self.here[block][1]))
        if self.worth[kind, 0] < self.worth[self.here[victim][0], ages[victim]]:
            return False
        del self.here[victim]
        above = self.parents.pop(victim)
        self.children[above] -= 1
        if above in self.here and not self.children[above]:
            heapq.heappush(self.leaves[self.here[above][0]], (self.here[above][2], above))
        return True

    def head(self, leaves: list[tuple[int, int]], parent: int) -> int | None:
        """The block of a kind that was asked for the longest ago, and that none follows."""
        kept = None
        while leaves:
            turn, block = leaves[0]
            is_current = block in self.here and self.here[block][2] == turn and not self.children[block]
            if is_current and block != parent:
                break
            kept = leaves[0] if is_current else kept
            heapq.heappop(leaves)
        out = leaves[0][1] if leaves else None
        if kept is not None:
            heapq.heappush(leaves, kept)
        return out


def best_rate(chances: Sequence[float], widths: Sequence[float]) -> float:
    """The most that a slot brings for each unit of time, if the block may go at the end of any bucket."""
    waits, found, time, best = 1.0, 0.0, 0.0, 0.0
    for chance, width in zip(chances, widths, strict=True):
        time += waits * (1 - chance / 2) * width
        found += waits * chance
        waits *= 1 - chance
        best = max(best, found / time)
    return best
