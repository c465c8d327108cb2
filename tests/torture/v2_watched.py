"""The canary beside a V2 manager under attack: digests of pages that have names for bytes.

The device is ours, and does nothing by itself: digests are made in the order in which the attack carries out steps and
copies of pages, which is any that streams and events allow.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from tests.standin.serving import PYEXECUTOR
from trtllm_kvfix.managers.upstream_v2 import KIND, V2, reasons
from trtllm_kvfix.managers.watched_v2 import WatchedV2, watch
from trtllm_kvfix.managers.watching import ATTRIBUTE, Watching
from trtllm_kvfix.settings import Settings

from .v2_attack import Attack
from .v2_books import SLIDING
from .v2_contents import GROUPS, Launch

GROUP_BYTES, SLOT_BYTES = 1 << 40, 1 << 16
PLACE = f"{PYEXECUTOR}.kv_cache.kv_cache_manager_v2"


class NamedPages:
    """A device, as far as the canary calls it."""

    name, has_kernels = "pages with names", True

    def __init__(self, attack: Attack) -> None:
        self._contents, self._levels = attack.contents, attack.manager.impl.levels
        self._order = self._levels.order
        self._recorded: list[int] = []  # by event: how often
        self._reached: list[int] = []

    def create_event(self) -> int:
        self._recorded.append(0)
        self._reached.append(0)
        return len(self._recorded) - 1

    def destroy_event(self, event: int) -> None:
        """Numbers are not used again."""

    def record(self, event: int, stream: int) -> None:
        self._recorded[event] += 1
        self._order.enqueue(stream, partial(self._reach, event, self._recorded[event]), lambda: True)

    def _reach(self, event: int, number: int) -> None:
        self._reached[event] = number

    def make_wait(self, stream: int, event: int) -> None:
        number = self._recorded[event]
        self._order.enqueue(stream, lambda: None, lambda: self._reached[event] >= number)

    def digest_ring(self, stream: int, pools: Sequence[tuple[int, ...]], places: int, _key: int) -> Any:
        ((address, _, layers, _),) = pools

        def digest(slots: Sequence[int]) -> list[bytes]:
            group = address // GROUP_BYTES - 1
            digests = (self._contents.digest(group, slot) & (1 << 63) - 1 for slot in slots)
            return [digest.to_bytes(8, "little") * layers for digest in digests]

        def before() -> None:
            self._contents.note(*self._levels.take_moves())

        return Ring(partial(self._order.enqueue, stream), digest, before, places)


class Ring:
    """As the native one: what was sent arrives in its order, and its places are free from then on."""

    def __init__(
        self, enqueue: Callable[..., None], digest: Callable[[Sequence[int]], list[bytes]], before: Callable[[], None],
        places: int,
    ) -> None:  # fmt: skip
        """`before`: called at each sending, for what stands before it."""
        self.free = places
        self._enqueue, self._digest, self._before = enqueue, digest, before
        self._digested: list[list[bytes]] = []
        self._on_way = 0

    def send(self, slots: Sequence[int]) -> None:
        assert len(slots) <= self.free
        self.free -= len(slots)
        self._on_way += 1
        self._before()
        self._enqueue(lambda: self._digested.append(self._digest(slots)), lambda: True)

    def arrived(self) -> list[list[bytes]]:
        found, self._digested = self._digested, []
        self.free += sum(map(len, found))
        self._on_way -= len(found)
        return found

    def done(self) -> bool:
        return self._on_way == len(self._digested)


class Launched(NamedTuple):
    launch: Launch
    pages: dict[int, list[list[int]]]  # by request and group, as they should have been
    complete: set[tuple[int, int]]  # by group and page, of all active requests


@dataclass
class WrongWrites:
    """Which steps have written into complete blocks of others."""

    manager: Any
    _launched: list[Launched] = field(default_factory=list)

    def noting(self, note: Any) -> Any:
        def noting(*entries: Any) -> None:
            self._launched += [self._at(each) for each in entries if isinstance(each, Launch)]
            note(*entries)

        return noting

    def _at(self, launch: Launch) -> Launched:
        size, caches = self.manager.tokens_per_block, self.manager.kv_cache_map
        pages = {request_id: [cache.pages(group) for group in range(GROUPS)]
                 for request_id, cache in caches.items() if cache.is_active}  # fmt: skip
        complete = {
            (group, page)
            for request_id, groups in pages.items()
            for group, found in enumerate(groups)
            for page in found[: caches[request_id].history_length // size]
        }
        return Launched(launch, pages, complete)

    @property
    def steps(self) -> list[int]:
        return [step for step, each in enumerate(self._launched, 1) if self._is_wrong(each)]

    def _is_wrong(self, launched: Launched) -> bool:
        launch, size = launched.launch, self.manager.tokens_per_block
        keys = launch.seen.numpy()
        return any(
            page != launched.pages[piece.request_id][group][ordinal] and (group, page) in launched.complete
            for row, piece in enumerate(launch.pieces)
            for ordinal in range(piece.begin // size, -(-piece.end // size))
            for group in range(GROUPS)
            for page in [keys[group, row, 0, ordinal] // launch.scales[group]]
        )


def describe_memory(manager: Any, drafts: int) -> None:
    """What upstream's constructor leaves behind, and the stand-in's does not."""
    buffers = [SimpleNamespace(role="key", size=SLOT_BYTES)]
    layers = [SimpleNamespace(sliding_window_size=each.window_size, buffers=buffers) for each in SLIDING]
    manager.kv_cache_manager_py_config = SimpleNamespace(layers=layers, cache_tiers=["device", "host"])
    manager.max_draft_len = drafts
    manager.impl.layer_grouping = [[group] for group in range(GROUPS)]
    manager.impl.pool_group_descs = [
        SimpleNamespace(
            pools=[SimpleNamespace(base_address=GROUP_BYTES * (1 + group), slot_bytes=SLOT_BYTES)],
            slot_desc=SimpleNamespace(variants=[SimpleNamespace(
                layer_group_id=group,
                coalesced_buffers=[SimpleNamespace(buffer_ids=[SimpleNamespace(layer_id=group)])],
            )]),
        )
        for group in range(GROUPS)
    ]  # fmt: skip


@contextmanager
def watching(
    attack: Attack, blocks_per_step: int, *, knows_all: bool = False
) -> Iterator[tuple[WatchedV2, WrongWrites]]:
    """`knows_all`: blocks do not leave the device, and the groups exchange no memory."""
    settings = Settings(canary="observe", canary_blocks_per_step=blocks_per_step)
    active: Any = SimpleNamespace(on=True, settings=settings)
    kind = getattr(import_module(PLACE), KIND)
    describe_memory(attack.manager, max(attack.way.guesses))
    assert list(reasons(attack.manager)) == []
    writes = WrongWrites(attack.manager)
    device: Any = NamedPages(attack)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(attack.contents, "note", writes.noting(attack.contents.note)))
        for each in Watching(PLACE, V2).replacements(active):
            name = each.seam.path.rpartition(".")[2]
            stack.enter_context(mock.patch.object(kind, name, each.make(getattr(kind, name))))
        watched = watch(attack.manager, settings, device, knows_all=knows_all)
        setattr(attack.manager, ATTRIBUTE, watched)
        yield watched, writes
