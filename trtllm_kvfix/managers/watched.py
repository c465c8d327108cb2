"""What a canary beside the native manager is told, from what the books say of slots and positions.

Upstream makes no call when a step has been enqueued. But the head of a `prepare_resources` lies behind the last step,
and in front of everything that gives a slot to somebody else. So there the canary is told which positions are known to
be written, and makes its looks. Positions count once the host knows them: those of a prompt when its chunk is reported,
those of an answer when the token behind them has been sampled.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from trtllm_kvfix.canary.canary import Canary, Pool, guarded
from trtllm_kvfix.canary.fills import Write
from trtllm_kvfix.canary.here import serving
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.layout import CacheLayout
from trtllm_kvfix.managers.watching import CONNECTOR
from trtllm_kvfix.metrics.counting import refresh
from trtllm_kvfix.native import Device, DeviceError, TransferItem
from trtllm_kvfix.overlay.fix import Manager
from trtllm_kvfix.overlay.registry import here
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging.place import place_of_thread

SETTING = "kvfix.canary: observe"


def objection(layout: CacheLayout) -> str:
    """Why this cache cannot be watched; nothing if it can."""
    if layout.slides:
        sizes = ", ".join(str(window.size) for window in layout.windows)
        return f"one window that nothing leaves is watched; blocks leave the windows of this cache ({sizes})"
    if layout.connector is not None:
        return CONNECTOR
    return ""


def fixes_off(settings: Settings) -> list[str]:
    return [fix_id for fix_id in settings.fixes.root if settings.choice_of(fix_id) in ("off", "observe")]


def hazards_open(settings: Settings, manager: Manager) -> list[str]:
    """Those that the settings let happen to this manager."""
    mine = [fix for fix in here.fixes if fix.only_for in (None, manager)]
    return [fix.hazard for fix in mine if settings.fixes.of(fix.id) in ("off", "observe")]


def begun(
    device: Device, stream: int, pools: Sequence[Pool], tokens_per_block: int, settings: Settings, manager: Manager, *,
    one_of: int = 1, knows_all: bool = True,
) -> Canary:  # fmt: skip
    """`one_of`: so many canaries share what is looked at in a step."""
    canary = Canary(
        device, stream, pools, tokens_per_block, max(1, settings.canary_blocks_per_step // one_of),
        fixes_off(settings), hazards_open(settings, manager), knows_all=knows_all,
    )  # fmt: skip
    serving.add(canary)
    refresh(canary)
    return canary


def filled_of(request: Any) -> int:
    """Positions that steps have written which the host knows to be enqueued: those of a prompt when its chunk is
    reported, those of an answer when the token behind them has been sampled."""
    position: int = request.context_current_position
    if request.context_remaining_length:
        return position
    written: int = request.get_num_tokens(0) - 1
    return max(position, written)


def drafts_of(manager: Any) -> int:
    """Of a request in a step, at most."""
    return int(getattr(manager, "max_draft_len", 0) or 0)


class Order:
    """Looks are behind the model and in front of it, whether it runs on the stream that upstream has named, where they
    are, or on the one that is current."""

    def __init__(self, device: Device, stream: int) -> None:
        self._device, self._stream = device, stream
        self._event = device.create_event()
        self._current = stream

    def __enter__(self) -> None:
        own, (_, current) = self._stream, place_of_thread.now()
        self._current = current
        if own != current:
            self._put(current, before=own)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._stream != self._current:
            self._put(self._stream, before=self._current)

    def _put(self, stream: int, *, before: int) -> None:
        self._device.record(self._event, stream)
        self._device.make_wait(before, self._event)

    def close(self) -> None:
        with suppress(DeviceError):  # of a device that fails; the manager that is watched has its own things to end
            self._device.destroy_event(self._event)


class WatchedCache:
    """Called under the manager's lock. Its faults end the canary alone."""

    def __init__(
        self, device: Device, layout: CacheLayout, books: Books, addresses: Sequence[int], settings: Settings
    ) -> None:
        pools = [
            Pool(address, shape.slot_bytes, shape.layers)
            for address, shape in zip(addresses, layout.pools, strict=True)
        ]
        self.canary = begun(device, layout.stream, pools, layout.tokens_per_block, settings, "V1")
        self._layout, self._books, self._size = layout, books, layout.tokens_per_block
        self._order = Order(device, layout.stream)
        self._told: dict[int, int] = {}  # leading positions of each request that are filled
        self._dummies: set[int] = set()  # their blocks are filled by every step anew, and never count
        self._open: set[int] = set()  # requests that may have filled another block
        books.requests.note_who_gets_blocks()

    @property
    def fault(self) -> str | None:
        return self.canary.fault

    def stand_down(self, error: Exception) -> None:
        self.canary.stand_down(error)

    @guarded
    def moved(self, items: Sequence[TransferItem]) -> None:
        self.canary.moved(items)

    @guarded
    def begin_iteration(self) -> None:
        self.hear()
        writes = list(self._filled())
        with self._order:
            self.canary.step(writes)

    @guarded
    def hear(self) -> None:
        """Who has got blocks. Before any look: of those slots somebody else is the owner now."""
        got = self._books.requests.take_who_got_blocks()
        if not got:
            return
        taken = self._books.slots.of([each.request_id for each in got], self._layout.windows[0])
        for each, slots in zip(got, taken, strict=True):
            request_id = each.request_id
            if each.tokens_reused is None:
                self.canary.grown(request_id, slots[len(self.canary.books.slots_of(request_id)) :])
            else:
                self.canary.admitted(request_id, slots, each.tokens_reused)
                self._told[request_id] = each.tokens_reused
            (self._dummies if each.is_dummy else self._open).add(request_id)

    @guarded
    def ends(self, request_id: int) -> None:
        """It may never have been admitted."""
        self.hear()
        told = self._told.pop(request_id, None)
        if told is None:
            return
        self._open.discard(request_id)
        if request_id in self._dummies:
            self._dummies.remove(request_id)
        elif (filled := self._filled_of(request_id)) > told:
            self.canary.wrote([(request_id, told, filled)])
        with self._order:
            self.canary.released(request_id)

    @guarded
    def rewound(self, request_id: int) -> None:
        raise NotServed(f"request {request_id} was rewound, and drafts are not followed here")

    def close(self) -> None:
        self.canary.close()
        self._order.close()

    def _filled_of(self, request_id: int) -> int:
        return self._books.requests.filled(request_id, self._books.live[request_id].get_num_tokens(0))

    def _filled(self) -> Iterator[Write]:
        """What is known to be filled since the last time, where a block is full by now: before their request ends,
        others find no other blocks."""
        size = self._size
        for request_id in list(self._open):
            told, filled = self._told[request_id], self._filled_of(request_id)
            if filled > told:
                self._told[request_id] = filled
                yield Write(request_id, None, told, filled, filled)
            if filled // size == self._books.core.get_token_count(request_id) // size:
                self._open.remove(request_id)


def watched(
    device: Device, layout: CacheLayout, books: Books, pointers: Any, settings: Settings
) -> WatchedCache | None:
    """None where the settings want none. Raises NotServed."""
    if settings.canary == "off":
        return None
    reason = objection(layout)
    if reason:
        raise NotServed(f"{SETTING}: {reason}; docs/canary.md lists what is watched")
    return WatchedCache(device, layout, books, [int(address) for address in pointers[:, 0]], settings)
