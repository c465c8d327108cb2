"""A double of a caching allocator for pinned memory, such as torch's: a block comes back once its events are done."""

from typing import NamedTuple

from trtllm_kvfix.native import Device, PinnedArray


class _Returned(NamedTuple):
    block: PinnedArray
    events: tuple[int, ...]  # of work that still reads the block


class CachingHostAllocator:
    """Blocks are never given back to the system, so that their addresses stay mapped whatever is pending.

    As in torch, the allocator knows only about recorded work. Copies of the framework record themselves; a kernel that
    takes a raw pointer does not, and a block that it still reads looks free.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._in_use: dict[int, list[int]] = {}  # events by address, of blocks in use
        self._returned: list[_Returned] = []

    def take(self, shape: tuple[int, ...], dtype: str) -> PinnedArray:
        block = self._reusable(shape, dtype) or self._device.pinned(shape, dtype)
        self._in_use[block.address] = []
        return block

    def record(self, block: PinnedArray, stream: int) -> None:
        """The block is read by what has been enqueued on the stream so far."""
        event = self._device.create_event()
        self._device.record(event, stream)
        self._in_use[block.address].append(event)

    def give_back(self, block: PinnedArray) -> None:
        """The last reference to a tensor goes."""
        self._returned.append(_Returned(block, tuple(self._in_use.pop(block.address))))

    def close(self) -> None:
        """Every stream has settled."""
        for returned in self._returned:
            self._destroy(returned.events)
        self._returned.clear()

    def _reusable(self, shape: tuple[int, ...], dtype: str) -> PinnedArray | None:
        for at, (block, events) in enumerate(self._returned):
            if (tuple(block.shape), block.dtype) == (shape, dtype) and all(map(self._device.done, events)):
                self._destroy(events)
                del self._returned[at]
                return block
        return None

    def _destroy(self, events: tuple[int, ...]) -> None:
        for event in events:
            self._device.destroy_event(event)
