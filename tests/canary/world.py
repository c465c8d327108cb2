"""A cache that does everything right, at random, and rewrites blocks in every way that is meant: a finding is false.

Each write brings other values, also where a position is computed again: kernels do not give the same bits twice. The
device does at once what it is given. Looks may wait, but not beyond the fill that they were due for.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

SIZE = 4  # tokens per block
SLOTS, HOST_SLOTS = 16, 8
Place = tuple[str, int]  # tier and slot


@dataclass
class Chain:
    """A cached prefix."""

    places: list[Place]
    tokens: int


@dataclass
class Live:
    request: int
    slots: list[int]
    begin: int  # the next position to be written
    own_from: int  # positions before were computed by others
    loading: int = 0  # positions that a connector writes
    drafted: int = 0  # behind the last position that a step wrote
    goes_round: bool = False  # a window that writes over its own oldest blocks


class World:
    def __init__(self, fills: Any, seed: int, lookahead: int = 0) -> None:
        """`fills`: the module, or a mutant of it."""
        self.fills = fills
        self.random = random.Random(seed)
        self.lookahead = lookahead
        self.books = fills.FillBooks(SIZE, self.unfilled, lookahead=lookahead)
        self.memory: dict[Place, list[float]] = {}
        self.live: dict[int, Live] = {}
        self.cached: list[Chain] = []
        self.due: list[Any] = []
        self.findings: list[str] = []
        self.done: Counter[str] = Counter()
        self.requests = 0
        self.more = count(SLOTS)  # slots of a server that has run out of them

    def play(self, steps: int) -> "World":
        acts: list[Callable[[], None]] = [self.admit, self.admit, self.step, self.step, self.relocate, self.release]
        for _ in range(steps):
            self.random.choice(acts)()
            self.look(self.random.randrange(6))
            self.check()
        return self

    # ---- what the canary does ----

    def unfilled(self, slot: int, _fill: Any, reader: int) -> None:
        self.findings.append(f"slot {slot} was never filled, and request {reader} reuses it")

    def tell(self, looks: Any) -> None:
        self.due += [looks.part(place, place + 1) for place in range(len(looks.slots))]

    def look(self, count: int) -> None:
        live = [slot for slot, fill in self.books.primary.items() if fill.digests is not None]
        for slot in self.random.sample(live, min(2, len(live))):
            self.due.append(self.fills.Looks([slot], [self.books.primary[slot]], "live"))
        for look in self.due[:count]:
            there = self.books.still_there(look)
            if there.slots:
                self.compare(there.slots[0], there.fills[0], look.occasion)
        del self.due[:count]

    def compare(self, slot: int, fill: Any, occasion: str) -> None:
        digests = tuple(self.of(("primary", slot)))
        self.done[occasion] += 1
        if fill.digests is None:
            fill.digests = digests
        elif fill.digests != digests:
            self.findings.append(f"slot {slot} has changed (seen: {occasion})")

    def check(self) -> None:
        """What is complete is known to be so: a canary that looks at nothing is silent, too."""
        held = Counter(slot for each in self.live.values() for slot in each.slots)
        for each in self.live.values():
            kept = 0 if each.loading or each.goes_round else each.begin // SIZE
            for place in range(each.own_from // SIZE, kept):
                slot = each.slots[place]
                assert held[slot] > 1 or self.books.primary[slot].complete

    # ---- what the server does ----

    def of(self, place: Place) -> list[float]:
        return self.memory.setdefault(place, [0.0] * SIZE)

    def write(self, slots: list[int], begin: int, end: int) -> None:
        for position in range(begin, end):
            self.of(("primary", slots[position // SIZE]))[position % SIZE] = self.random.random()

    def admit(self) -> None:
        if len(self.live) == 2:
            return
        self.requests += 1
        slots, reused = self.reuse() if self.cached and self.random.random() < 0.8 else ([], 0)
        length = reused + self.random.randrange(1, 7)
        while len(slots) * SIZE < length:
            slots.append(self.free_slot(slots))
        self.tell(self.books.admitted(self.requests, slots, reused))
        one = self.live[self.requests] = Live(self.requests, slots, reused, reused)
        if self.random.random() < 0.3:
            one.loading = length
            self.done["loads"] += 1

    def reuse(self) -> tuple[list[int], int]:
        """Take a cached prefix: blocks as they are, and of the last perhaps a part."""
        chain = self.random.choice(self.cached)
        reused = self.random.choice([self.random.randrange(chain.tokens), chain.tokens - 1, chain.tokens])
        slots: list[int] = []
        for number in range(-(-reused // SIZE)):
            if number >= len(chain.places):  # evicted to make room for its beginning
                reused = number * SIZE
                break
            slots.append(self.on_device(chain, number, slots))
        if len(slots) * SIZE > len(chain.places) * SIZE:
            slots, reused = slots[: len(chain.places)], min(reused, len(chain.places) * SIZE)
        if reused % SIZE:
            self.part(chain, slots, reused % SIZE)
        return slots, reused

    def part(self, chain: Chain, slots: list[int], tokens: int) -> None:
        """The rest of the last block will be written: in a copy, in the leaf that is taken over, or in place, as the
        last token of an exact repeat."""
        last, number = slots[-1], len(slots) - 1
        is_repeat = tokens == SIZE - 1 and chain.tokens >= len(slots) * SIZE
        is_held = any(last in each.slots for each in self.live.values())
        if is_repeat and self.random.random() < 0.5:
            self.done["repeats"] += 1
        elif is_held or self.random.random() < 0.5:
            slots[-1] = self.free_slot(slots)
            self.copy("copy", ("primary", last), ("primary", slots[-1]), tokens)
        else:
            self.done["taken over"] += 1
            for each in [each for each in self.cached if ("primary", last) in each.places]:
                self.cut(each, each.places.index(("primary", last)))
            self.cut(chain, number)

    def on_device(self, chain: Chain, number: int, kept: list[int]) -> int:
        place = chain.places[number]
        if place[0] == "primary":
            return place[1]
        slot = self.free_slot(kept)
        self.copy("onboard", place, ("primary", slot), self.tokens_in(place))
        for each in self.cached:
            each.places = [("primary", slot) if one == place else one for one in each.places]
        return slot

    def free_slot(self, kept: list[int]) -> int:
        held = {slot for each in self.live.values() for slot in each.slots} | set(kept)
        slot = self.random.choice([slot for slot in range(SLOTS) if slot not in held] or [next(self.more)])
        place = ("primary", slot)
        users = [each for each in self.cached if place in each.places]
        taken = {one[1] for each in self.cached for one in each.places if one[0] == "host"}
        room = [each for each in range(HOST_SLOTS) if each not in taken]
        if users and room and self.random.random() < 0.7:
            target = ("host", self.random.choice(room))
            self.copy("offload", place, target, self.tokens_in(place))
            for each in users:
                each.places[each.places.index(place)] = target
        else:
            for each in users:
                self.cut(each, each.places.index(place))
        return slot

    def tokens_in(self, place: Place) -> int:
        """The most that a cached prefix has there."""
        users = [each for each in self.cached if place in each.places]
        return max(min(SIZE, each.tokens - each.places.index(place) * SIZE) for each in users)

    def copy(self, kind: str, source: Place, target: Place, tokens: int) -> None:
        self.done[kind] += 1
        self.of(target)[:tokens] = self.of(source)[:tokens]
        self.tell(self.books.moved(kind, source[1], target[1], tokens))

    def cut(self, chain: Chain, number: int) -> None:
        del chain.places[number:]
        chain.tokens = min(chain.tokens, number * SIZE)
        self.cached = [each for each in self.cached if each.tokens]

    def step(self) -> None:
        for one in self.live.values():
            if one.loading:
                self.load(one)
                continue
            if self.random.random() < 0.1 and not one.goes_round:  # a load has failed: compute it again
                one.begin = self.random.randrange(one.own_from, one.begin + 1)
                self.done["again"] += 1
            drafts = self.random.choice([0, 0, 3, 6])
            certain = one.begin + self.random.choice([1, 2, SIZE, 5])
            end = certain + drafts
            while len(one.slots) * SIZE < end:
                is_cyclic = len(one.slots) > 3 and one.own_from == 0 and self.random.random() < 0.1
                one.slots.append(one.slots[-4] if is_cyclic else self.free_slot(one.slots))
                one.goes_round |= is_cyclic
                self.done["cyclic"] += is_cyclic
            if self.lookahead and one.begin:
                self.write(one.slots, one.begin - 1, one.begin)
            self.write(one.slots, one.begin, end)
            self.tell(self.heard(one, end, certain))
            one.begin = certain
            one.drafted = end
            if drafts and self.random.random() < 0.5:
                del one.slots[-(-certain // SIZE) :]  # rewound across a block
                self.done["rewound"] += 1

    def heard(self, one: Live, end: int, certain: int) -> Any:
        """All at once; or slots first, and then what was written and is kept, as beside another's manager."""
        if end > certain or self.lookahead or self.random.random() < 0.5:
            first = one.begin // SIZE
            return self.books.written(self.fills.Write(one.request, tuple(one.slots[first:]), one.begin, end, certain))
        known = self.books.slots_of(one.request)
        same = next((n for n, (old, new) in enumerate(zip(known, one.slots, strict=False)) if old != new), len(known))
        self.books.shrunk(one.request, min(same, len(one.slots)))
        self.books.grown(one.request, one.slots[same:])
        self.done["slots first"] += 1
        return self.books.loaded(one.request, one.begin, certain)

    def relocate(self) -> None:
        """Accepted drafts are moved together between two steps: what is behind the certain positions may change."""
        for one in self.live.values():
            if one.begin < one.drafted <= len(one.slots) * SIZE:
                self.write(one.slots, one.begin, one.drafted)
                self.done["relocated"] += 1

    def load(self, one: Live) -> None:
        """Half of it arrives in one step, and all of it in another."""
        self.write(one.slots, one.begin, one.loading)
        if self.random.random() < 0.5:
            self.tell(self.books.loaded(one.request, one.begin, one.loading))
            one.begin = one.loading
            one.loading = 0

    def release(self) -> None:
        if not self.live:
            return
        one = self.live.pop(max(self.live, key=lambda each: len(self.live[each].slots)))
        self.tell(self.books.released(one.request))
        if one.begin and not one.loading and not one.goes_round and self.random.random() < 0.8:
            tokens = max(1, one.begin - self.random.choice([0, 1]))  # some servers do not keep the last one
            self.cached.append(Chain([("primary", slot) for slot in one.slots[: -(-tokens // SIZE)]], tokens))
