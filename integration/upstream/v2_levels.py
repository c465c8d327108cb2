"""Upstream's own V2 runtime below the attack of tests/torture: its copies and the steps go by streams and events."""

from collections.abc import Callable, Sequence
from typing import Any

from integration.upstream.v2_compared import GROUPS, Theirs
from integration.upstream.v2_driver import Timeline

KINDS = {"device to host": "offload", "host to device": "onboard", "device to device": "move"}
GROUP, WITHIN = 50, 44  # bits of an address of v2_storage: the group, and behind its pool the byte


def slots_copied(storage: Any, kind: str, source: int, target: int) -> tuple[str, int, int, int]:
    """What a copy between these addresses is, in which group, and of which slot to which."""
    group = source >> GROUP & 63
    size = storage.slot_size(group)[0]
    within = (1 << WITHIN) - 1
    return KINDS[kind], group, (source & within) // size, (target & within) // size


class Copies:
    """What the runtime copies, as soon as somebody carries it out."""

    order: Timeline
    _storage: Any
    _move: Callable[[str, int, int, int], None] | None = None

    def begin(self, move: Callable[[str, int, int, int], None], wait: Callable[[], object]) -> None:
        self._move = move
        self.order.host_waits = wait

    def copied(self, kind: str, source: int, target: int) -> None:
        if self._move is not None:
            self._move(*slots_copied(self._storage, kind, source, target))


class TheirLevels(Copies):
    def __init__(self, module: Any, order: Timeline, pages: int, host_pages: int) -> None:
        self._theirs = Theirs(module, pages, host_pages)
        self._storage = self._theirs.runtime._storage
        self.runtime, self.order = self, order
        self.has_host = host_pages > 0
        self._given = 0

    def create_kv_cache(self, salt: Any, tokens: list[int]) -> Any:
        assert salt is None, "all prompts are of one scope"
        return self._theirs.create(None, tokens)

    def probe_reuse(self, salt: Any, tokens: Sequence[int]) -> int:
        assert salt is None, "all prompts are of one scope"
        return self._theirs.probe(tokens)

    def take_moves(self) -> list[Any]:
        return []  # they are on streams of their own

    def adjust(self) -> bool:
        giver, taker = (0, 1) if self._given == 0 else (1, 0)
        used = self._storage.get_statistics(0)[giver]
        if used.unavailable:
            return False
        self._storage.shrink_pool_group(0, giver, used.total - 1, [])
        self._storage.expand_pool_group(0, taker, self._storage.num_slots(taker) + 1)
        self._given = 1 - self._given
        return True

    def leftovers(self) -> list[str]:
        held = self._storage.get_statistics(0)
        return [f"group {group}: {held[group].unavailable} pages" for group in range(GROUPS) if held[group].unavailable]


class Maker:
    """Makes levels. Servers make some that they throw away, and one to use.

    Upstream refuses a host tier where there is a connector.
    """

    def __init__(self, order: Timeline, *, has_host: bool = True) -> None:
        self.order = order
        self._has_host = has_host
        self.module: Any = None
        self._made: list[TheirLevels] = []

    def copied(self, kind: str, source: int, target: int) -> None:
        for each in self._made:
            each.copied(kind, source, target)

    def __call__(self, _tokens_per_block: int, pages: int, host_pages: int) -> TheirLevels:
        kept = host_pages if self._has_host else 0
        self._made.append(TheirLevels(self.module, self.order, pages, kept))
        return self._made[-1]
