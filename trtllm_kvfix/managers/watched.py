"""What a canary beside the native manager is told, from what the books say of slots and positions.

Upstream makes no call when a step has been enqueued. But the head of a `prepare_resources` lies behind the last step,
and in front of everything that gives a slot to somebody else. So there the canary is told which positions are known to
be written, and makes its looks. Positions count once the host knows them: those of a prompt when its chunk is reported,
those of an answer when the token behind them has been sampled.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trtllm_kvfix.canary.canary import Canary, guarded
from trtllm_kvfix.canary.fills import Write
from trtllm_kvfix.canary.here import serving
from trtllm_kvfix.canary.ring import Pool
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.books import LiveSequence, Slots
from trtllm_kvfix.managers.layout import CacheLayout
from trtllm_kvfix.metrics.counting import refresh
from trtllm_kvfix.native import Device, TransferItem
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import current_place

SETTING = "kvfix.canary: observe"


def objection(layout: CacheLayout) -> str:
    """Why this cache cannot be watched; nothing if it can."""
    if len(layout.pools) != 1 or layout.slides:
        return f"one pool and one window that nothing leaves are watched; this cache has {len(layout.pools)} pools"
    if layout.connector is not None:
        return "a connector loads blocks beside the manager, which does not hear when a load is over"
    return ""


class WatchedCache:
    """Called under the manager's lock. Its faults end the canary alone."""

    def __init__(self, device: Device, layout: CacheLayout, slots: Slots, address: int, settings: Settings) -> None:
        (shape,) = layout.pools
        off = [fix_id for fix_id in settings.fixes.root if settings.choice_of(fix_id) in ("off", "observe")]
        self.canary = Canary(
            device, layout.stream, Pool(address, shape.slot_bytes, len(shape.layers)), layout.tokens_per_block,
            settings.canary_blocks_per_step, off,
        )  # fmt: skip
        serving.add(self.canary)
        refresh(self.canary)
        self._device = device
        self._layout, self._slots, self._size = layout, slots, layout.tokens_per_block
        self._event = device.create_event()
        self._told: dict[int, int] = {}  # leading positions of each request that are filled
        self._open: dict[int, LiveSequence] = {}  # those that may have filled another block

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
        writes = list(self._filled())
        with self._ordered():
            self.canary.step(writes)

    @guarded
    def admitted(self, came: Sequence[LiveSequence]) -> None:
        for sequence, slots in zip(came, self._slots_of(came), strict=True):
            self.canary.admitted(sequence.request_id, slots, sequence.reused)
            self._told[sequence.request_id] = sequence.reused
            self._may_fill(sequence)

    @guarded
    def grown(self, live: Mapping[int, LiveSequence], counts: Mapping[int, int]) -> None:
        """These have got so many further positions, and some of them blocks."""
        size = self._size
        grown = [live[each] for each, count in counts.items() if (live[each].length - 1) % size < count]
        for sequence, slots in zip(grown, self._slots_of(grown), strict=True):
            known = len(self.canary.books.slots_of(sequence.request_id))
            self.canary.grown(sequence.request_id, slots[known:])
            self._may_fill(sequence)

    @guarded
    def removed(self, sequence: LiveSequence) -> None:
        request_id, filled = sequence.request_id, sequence.filled(sequence.request)
        told = self._told.pop(request_id)
        self._open.pop(request_id, None)
        if told < filled and not sequence.is_dummy:
            self.canary.wrote([Write(request_id, None, told, filled, filled)])
        with self._ordered():
            self.canary.released(request_id)

    @guarded
    def rewound(self, request_id: int) -> None:
        raise NotServed(f"request {request_id} was rewound, and drafts are not followed here")

    def close(self) -> None:
        self.canary.close()
        self._device.destroy_event(self._event)

    def _may_fill(self, sequence: LiveSequence) -> None:
        """A dummy's blocks are filled by every step anew, and never count."""
        if not sequence.is_dummy:
            self._open[sequence.request_id] = sequence

    def _filled(self) -> Iterator[Write]:
        """What is known to be filled since the last time, where a block is full by now: before their request ends,
        others find no other blocks."""
        size = self._size
        for request_id, sequence in list(self._open.items()):
            told, filled = self._told[request_id], sequence.filled(sequence.request)
            if filled > told:
                self._told[request_id] = filled
                yield Write(request_id, None, told, filled, filled)
            if filled // size == sequence.length // size:
                del self._open[request_id]

    def _slots_of(self, sequences: Sequence[LiveSequence]) -> list[list[int]]:
        if not sequences:
            return []
        return self._slots.of([each.request_id for each in sequences], self._layout.windows[0])

    @contextmanager
    def _ordered(self) -> Iterator[None]:
        """Looks are behind the model and in front of it, whether it runs on the stream that upstream has named or on
        the one that is current."""
        own, current = self._layout.stream, current_place().stream
        if own != current:
            self._order(current, before=own)
        yield
        if own != current:
            self._order(own, before=current)

    def _order(self, stream: int, *, before: int) -> None:
        self._device.record(self._event, stream)
        self._device.make_wait(before, self._event)


def watched(
    device: Device, layout: CacheLayout, slots: Slots, pointers: Any, settings: Settings
) -> WatchedCache | None:
    """None where the settings want none. Raises NotServed."""
    if settings.canary == "off":
        return None
    reason = objection(layout)
    if reason:
        raise NotServed(f"{SETTING}: {reason}; docs/canary.md lists what is watched")
    return WatchedCache(device, layout, slots, int(pointers[0, 0]), settings)
