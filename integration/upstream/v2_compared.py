"""The V2 runtime of upstream beside ours: the same operations on both, and what a caller sees of each.

`python -m integration.upstream.v2_compared TREE` lists what differs, over many random runs.
"""

import os
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from integration.upstream import processes
from integration.upstream.v2_driver import Timeline, runtime_of
from integration.upstream.v2_pages import LifeCycle, Pool
from integration.upstream.v2_runtime import BAD_PAGE, Runtime

TOKENS_PER_BLOCK, WINDOW = 4, 12
PAGES, HOST_PAGES, BLOCKS_MAX = 16, 12, 16
CYCLES = (LifeCycle(None), LifeCycle(WINDOW))
MIB = 1 << 20
GROUPS = 2
STREAM = 7
STEPS = 200
BOTH = "the same error in both:"
# A block that is not full gives way to one that begins with it. Where it is the only one of its scope, upstream takes
# the root out of its tree with it, and the call fails.
FAULTS = [
    f"{what}: ours None, upstream's raises ValueError: Dereferencing a dangling rawref"
    for what in ("commit", "close", "stop_committing")
]


class Ours:
    def __init__(self) -> None:
        pools = [Pool(group, PAGES, HOST_PAGES) for group in range(GROUPS)]
        self.runtime = Runtime(TOKENS_PER_BLOCK, list(CYCLES), pools)

    def create(self, number: int, tokens: list[int]) -> Any:
        del number
        return self.runtime.create_kv_cache(None, tokens)

    def free(self) -> list[tuple[int, int, int, int]]:
        """In each group: free, and of those that may go; on the device, and in the host tier."""
        return [
            (len(pool.free), len(pool.idle), len(pool.host_free), len(pool.host_idle)) for pool in self.runtime.pools
        ]


class Theirs:
    """Layers whose pages have other sizes, so each has a pool of its own."""

    def __init__(
        self, runtime: Any, pages: int = PAGES, host_pages: int = HOST_PAGES,
        windows: Sequence[int | None] = (None, WINDOW), tokens_per_block: int = TOKENS_PER_BLOCK,
    ) -> None:  # fmt: skip
        self._module = runtime
        sizes = [(1 + layer) * MIB for layer in range(len(windows))]  # of a key, or a value
        layers = [
            runtime.AttentionLayerConfig(
                layer_id=layer,
                buffers=[runtime.BufferConfig(role=role, size=sizes[layer]) for role in ("key", "value")],
                sliding_window_size=window,
            )
            for layer, window in enumerate(windows)
        ]
        page = 2 * sum(sizes)
        behind = [runtime.HostCacheTierConfig(quota=host_pages * page)] if host_pages else []
        self.runtime = runtime.KVCacheManager(
            runtime.KVCacheManagerConfig(
                tokens_per_block=tokens_per_block,
                cache_tiers=[runtime.GpuCacheTierConfig(quota=pages * page), *behind],
                layers=layers,
                enable_partial_reuse=False,
                enable_stats=False,
                initial_pool_ratio=[size / sum(sizes) for size in sizes],
            )
        )

    def create(self, number: int | None, tokens: list[int]) -> Any:
        return self.runtime.create_kv_cache(self._module.ReuseScope(None, None), tokens, id=number)

    def probe(self, tokens: Sequence[int]) -> int:
        return int(self.runtime.probe_reuse(self._module.ReuseScope(None, None), tokens))

    def free(self) -> list[tuple[int, int, int, int]]:
        levels = [self.runtime._storage.get_statistics(level) for level in (0, 1)]
        return [
            (device.free, device.evictable, host.free, host.evictable) for device, host in zip(*levels, strict=True)
        ]


class Caller:
    """One of the two, and its caches as their caller knows them."""

    def __init__(self, side: Any) -> None:
        self.side = side
        self.caches: dict[int, Any] = {}
        self.rows: dict[int, list[memoryview]] = {}
        self.attached: set[int] = set()

    def do(self, what: str, number: int, *given: Any) -> object:
        try:
            return getattr(self, what)(number, *given)
        except Exception as error:
            return f"raises {type(error).__name__}: {error}"

    def create(self, number: int, tokens: list[int]) -> None:
        self.caches[number] = self.side.create(number, tokens)

    def resume(self, number: int) -> bool:
        resumed = bool(self.caches[number].resume(STREAM))
        if resumed:
            self.rows[number] = [memoryview(array("i", [-7] * BLOCKS_MAX)) for _ in range(GROUPS)]
            for group, row in enumerate(self.rows[number]):
                self.caches[number].set_base_page_index_buf(0, group, row)
            self.attached.add(number)
        return resumed

    def resize(self, number: int, capacity: int | None, history: int | None) -> bool:
        return bool(self.caches[number].resize(capacity, history))

    def commit(self, number: int, tokens: list[int]) -> None:
        self.caches[number].commit(tokens)

    def suspend(self, number: int) -> None:
        self.caches[number].suspend()
        self.attached.discard(number)

    def stop_committing(self, number: int) -> None:
        self.caches[number].stop_committing()

    def let_go(self, number: int) -> None:
        for group in range(GROUPS):
            self.caches[number].set_base_page_index_buf(0, group, None)
        self.attached.discard(number)

    def close(self, number: int) -> None:
        self.caches[number].close()
        del self.caches[number]

    def reset(self, number: int) -> None:
        """Nothing that is there is reused any more."""
        del number
        self.side.runtime.clear_reusable_blocks()

    def probe(self, number: int, tokens: list[int]) -> int:
        del number
        return int(self.side.probe(tokens))

    def lengths(self, number: int) -> dict[str, object]:
        cache = self.caches[number]
        names = ("is_active", "capacity", "history_length", "num_committed_tokens")
        return {name: getattr(cache, name) for name in names}

    def pages(self, number: int, group: int) -> list[int]:
        """A page that the window has passed may be held, and lie in the host tier."""
        cache = self.caches[number]
        found = [int(page) for page in cache.get_aggregated_page_indices(group)]
        passed = min(len(found), CYCLES[group].get_stale_range(cache.history_length, TOKENS_PER_BLOCK).end)
        return [BAD_PAGE] * passed + found[passed:]


def compare(seed: int, ours: Caller, theirs: Caller, steps: int = STEPS) -> str | None:
    """The first difference."""
    random = Random(seed)
    prompts: dict[int, list[int]] = {}
    for number in range(steps):
        what, which, given = _drawn(random, number, prompts, ours)
        here, there = ours.do(what, which, *given), theirs.do(what, which, *given)
        if _kind(here) != _kind(there):
            return f"{what}: ours {here}, upstream's {there}"
        if _kind(here) == "raises" and "stop_committing" not in str(there):  # upstream's cache is not whole any more
            return f"{BOTH} {what} {there}"
        if what == "close":
            del prompts[which]
        found = _differs(ours, theirs)
        if found:
            return f"after {what}: {found}"
    return None


def _kind(outcome: object) -> object:
    return "raises" if isinstance(outcome, str) else outcome


def _drawn(random: Random, number: int, prompts: dict[int, list[int]], ours: Caller) -> tuple[str, int, list[Any]]:
    if not prompts or (len(prompts) < 5 and random.random() < 0.2):
        shared = [random.randrange(2)] * random.choice((0, 8, 12))
        prompts[number] = shared + [100 * number + at for at in range(random.randint(3, 20))]
        return "create", number, [prompts[number][:-1]]
    which = random.choice(sorted(prompts))
    cache = ours.caches[which]
    if not cache.is_active:
        return random.choice(("resume", "resume", "resume", "close")), which, []
    capacity, history, committed = cache.capacity, cache.history_length, cache.num_committed_tokens
    grown = min(capacity + random.choice((1, 3, 4, 9)), TOKENS_PER_BLOCK * BLOCKS_MAX)
    tokens = prompts[which] + [50000 + 1000 * which + at for at in range(100)]
    end = min(capacity, committed + random.choice((1, 4, 8)))
    chosen: tuple[str, list[Any]] = random.choice((
        *[("resize", [grown, None])] * 2,
        *[("commit", [tokens[committed:end]])] * 2,
        ("resize", [None, random.randint(history, capacity)]),
        ("resize", [random.randint(history, capacity), None]),
        ("suspend", []),
        ("close", []),
        ("let_go" if random.random() < 0.9 else "stop_committing", []),
    ))  # fmt: skip
    return chosen[0], which, chosen[1]


Steps = tuple[tuple[str, int, list[Any]], ...]
# A prompt that is shorter than a block, and one that begins with it.
SHORT_FIRST: Steps = (
    ("create", 1, [[]]), ("resume", 1, []), ("resize", 1, [3, None]), ("commit", 1, [[5, 6, 7]]), ("close", 1, []),
    ("create", 2, [[]]), ("resume", 2, []), ("resize", 2, [4, None]), ("commit", 2, [[5, 6, 7, 8]]),
)  # fmt: skip
# The pages of the first have left the device when the second has computed the same tokens.
NO_WAY_BACK: Steps = (
    ("create", 1, [[]]), ("resume", 1, []), ("resize", 1, [48, None]), ("commit", 1, [[*range(48)]]),
    ("suspend", 1, []), ("create", 2, [[]]), ("resume", 2, []), ("resize", 2, [64, None]),
    ("commit", 2, [[*range(8)]]),
)  # fmt: skip

# Too much is wanted first, and then what the host tier could have taken.
TOO_MUCH_FIRST: Steps = (
    ("create", 1, [[]]), ("resume", 1, []), ("resize", 1, [64, None]), ("suspend", 1, []),
    ("create", 2, [[]]), ("resume", 2, []), ("resize", 2, [52, None]), ("resize", 2, [48, None]),
)  # fmt: skip

# Reuse is reset in the middle of a prompt, as for new weights. It is committed at its end, or in parts.
RESET_WHILE_COMPUTED: Steps = (
    ("create", 1, [[]]), ("resume", 1, []), ("resize", 1, [12, None]), ("reset", 0, []),
    ("commit", 1, [[*range(12)]]), ("close", 1, []), ("probe", 0, [[*range(16)]]),
)  # fmt: skip
RESET_BEHIND_A_PART: Steps = (
    ("create", 1, [[]]), ("resume", 1, []), ("resize", 1, [12, None]), ("commit", 1, [[*range(4)]]), ("reset", 0, []),
    ("commit", 1, [[*range(4, 12)]]),
)  # fmt: skip


def of_theirs(steps: Steps, _: Caller, theirs: Caller) -> str:
    """What the last step brings."""
    return [str(theirs.do(*step[:2], *step[2])) for step in steps][-1]


def outcomes(steps: Steps, ours: Caller, theirs: Caller) -> str:
    """Of both, of the last step."""
    return [f"ours {ours.do(*step[:2], *step[2])}, upstream's {theirs.do(*step[:2], *step[2])}" for step in steps][-1]


def played(steps: Steps, ours: Caller, theirs: Caller) -> str | None:
    """The first difference, or the first error."""
    for what, which, given in steps:
        here, there = ours.do(what, which, *given), theirs.do(what, which, *given)
        if _kind(here) != _kind(there):
            return f"{what}: ours {here}, upstream's {there}"
        if _kind(here) == "raises":
            return f"{BOTH} {what} {there}"
    return None


def _differs(ours: Caller, theirs: Caller) -> str | None:
    for number in ours.caches:
        here, there = ours.lengths(number), theirs.lengths(number)
        if here != there:
            return f"lengths: ours {here}, upstream's {there}"
    for group in range(GROUPS):
        found = _pages_differ(ours, theirs, group)
        if found:
            return found
    if ours.side.free() != theirs.side.free():
        return f"free pages: ours {ours.side.free()}, upstream's {theirs.side.free()}"
    return None


def _pages_differ(ours: Caller, theirs: Caller, group: int) -> str | None:
    same: dict[int, int] = {}  # their number of each of our pages
    for number in [each for each in ours.caches if ours.caches[each].is_active]:
        mine, its = ours.pages(number, group), theirs.pages(number, group)
        if [page < 0 for page in mine] != [page < 0 for page in its]:
            return f"pages of group {group}: ours {mine}, upstream's {its}"
        if any(same.setdefault(page, other) != other for page, other in zip(mine, its, strict=True)):
            return f"sharing of group {group}: ours {mine}, upstream's {its}"
        for caller, pages in ((ours, mine), (theirs, its)):
            row = caller.rows[number][group]
            if number in caller.attached and list(row[: len(pages)]) != pages:
                return f"a row of group {group}: {list(row)}, and the pages are {pages}"
    return f"sharing of group {group}: {same}" if len(set(same.values())) != len(same) else None


def difference(tree: Path, seed: int) -> str | None:
    """In a process of its own: upstream's runtime does not survive an error in the middle of a call."""
    return alone(tree, partial(compare, seed))


def alone(tree: Path, play: Callable[[Caller, Caller], str | None]) -> str | None:
    try:
        return cast("str | None", processes.alone(_played, tree, play))
    except EOFError:
        return "the process ended"


def _played(tree: Path, play: Callable[[Caller, Caller], str | None], sending: Any) -> None:
    with runtime_of(tree, Timeline(Random(1)), lambda *_: None) as runtime:
        ours, theirs = Caller(Ours()), Caller(Theirs(runtime))
        sending.send(play(ours, theirs))
        os._exit(0)  # before anything of theirs ends


def main(tree: Path, runs: int = 200) -> None:
    found: Counter[str] = Counter()
    for seed in range(runs):
        found[difference(tree, seed) or "no difference"] += 1
    for text, count in found.most_common():
        sys.stdout.write(f"{count} {text}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
