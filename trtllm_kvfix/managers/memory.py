"""The memory behind the slots: pools on the device, as layout.py says, and the same again in pinned memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix.managers import tensors
from trtllm_kvfix.managers.layout import CacheLayout, PoolShape
from trtllm_kvfix.native import Device, DeviceArray, HostPool, TransferItem

End = tuple[int | None, str, int]  # window, tier, slot


@dataclass(frozen=True)
class Spans:
    """Copies that may run in any order among themselves."""

    dst: list[int]
    src: list[int]
    nbytes: list[int]


class Memory:
    """Memory allocated outside torch, as by upstream's C++. Views that were handed out keep it alive."""

    def __init__(self, device: Device, layout: CacheLayout) -> None:
        self._device = device
        self._layout = layout
        self._primary: list[DeviceArray] = []
        self._host: dict[int, HostPool] = {}  # by pool
        for index, pool in enumerate(layout.pools):
            self._primary.append(device.empty((pool.window.blocks_primary * pool.slot_bytes,), "uint8"))
            if pool.window.blocks_host:
                size = pool.window.blocks_host * pool.slot_bytes
                self._host[index] = HostPool(device, host_bytes=size, block_bytes=pool.slot_bytes)

    @property
    def device_bytes(self) -> int:
        return sum(each.nbytes for each in self._primary)

    def release(self) -> None:
        """Free the memory. Nothing on the device may use it any more."""
        self._primary.clear()
        for pool in self._host.values():
            pool.close()
        self._host.clear()

    def pointers(self) -> Any:
        """[pools, 2]: the address of each pool on the device, and of its host tier or 0."""
        table = np.zeros((len(self._primary), 2), np.int64)
        for index, pool in enumerate(self._primary):
            table[index, 0] = pool.address
            table[index, 1] = self._host[index].address if index in self._host else 0
        return tensors.on_cpu(table)

    def pool(self, index: int) -> Any:
        """[slots, layers, kv_factor, values]."""
        shape = self._layout.pools[index]
        sides = (shape.window.blocks_primary, len(shape.layers), shape.kv_factor, shape.values)
        return tensors.view(self._device, self._primary[index], sides, shape.element)

    def layer(self, layer: int) -> Any:
        """[slots, kv_factor, values], a whole slot apart."""
        pool, place = self._layout.place_of(layer)
        return self.pool(pool)[:, place]

    def waves(self, items: Iterable[TransferItem]) -> Iterator[Spans]:
        """The items in groups. Within one, none writes what another reads or writes, so their order is free."""
        group: list[TransferItem] = []
        read: set[End] = set()
        written: set[End] = set()
        for item in items:
            source, target = _ends(item)
            if source in written or target in written or target in read:
                yield self._spans(group)
                group, read, written = [], set(), set()
            group.append(item)
            read.add(source)
            written.add(target)
        if group:
            yield self._spans(group)

    def _spans(self, items: list[TransferItem]) -> Spans:
        spans = Spans([], [], [])
        for index, shape in enumerate(self._layout.pools):
            for item in items:
                if item.window_size != shape.window.name:
                    continue
                source, target = _ends(item)
                spans.src.append(self._address(index, shape, source))
                spans.dst.append(self._address(index, shape, target))
                spans.nbytes.append(shape.slot_bytes)
        return spans

    def _address(self, index: int, shape: PoolShape, end: End) -> int:
        _, tier, slot = end
        base = self._primary[index].address if tier == "primary" else self._host[index].address
        return base + slot * shape.slot_bytes


def _ends(item: TransferItem) -> tuple[End, End]:
    """The slot that a transfer reads, and the one that it writes."""
    reads_host, writes_host = item.kind == "onboard", item.kind == "offload"
    source = item.window_size, "host" if reads_host else "primary", item.slot_src
    return source, (item.window_size, "host" if writes_host else "primary", item.slot_dst)


def layer_table(layout: CacheLayout) -> Any:
    """[layers, 2]: the pool of each layer, and its position there."""
    table: npt.NDArray[np.int32] = np.array([layout.place_of(layer) for layer in range(layout.layers)], np.int32)
    return tensors.on_cpu(table)
