"""V2 block offsets: the kernel reads only what is ours, never the live table or the shared copy index (H2).

What the cache writes into a row later, in the same iteration or because the row has a new owner, does not reach a call
that has been made. The rows of the batch are read out of the live table by the CPU, at the call.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place
from trtllm_kvfix.staging.stagers import Stagers, is_too_wide, memory_of, v1, v2

BAD_PAGE = -1
PER_LAYER = "_copy_batch_block_offsets_per_layer"
TABLE = "host_kv_cache_block_offsets"
# Written in place at every call of the per-layer path, and read by asynchronous copies.
SCRATCH = ("_host_scratch_begs_staging", "_host_scratch_ends_staging", "_host_scratch_slots_staging")


class PrivateRows:
    """What a kernel of upstream's reads, kept until it has run: the host allocator knows of no kernel's reads."""

    def __init__(self) -> None:
        self._kept: deque[tuple[native.Device, int, Any]] = deque()  # with the event behind the kernel

    def launch(self, original: Callable[..., Any], table: Any, output: Any, copy_index: Any, *rest: Any) -> None:
        """Upstream's kernel on rows and a copy index that nobody writes. The stream is the last argument."""
        index = copy_index.numpy()
        pools, _, planes, blocks = table.shape
        rows = table.new_empty((pools, len(index), planes, blocks), pin_memory=table.is_pinned())
        rows.numpy()[:, :, 0] = table.numpy()[:, index, 0]
        order = fresh_pinned(copy_index)
        order.numpy()[...] = np.arange(len(index))
        original(rows, output, order, *rest)
        self._keep((rows, order), int(rest[-1]))

    def _keep(self, tensors: Any, stream: int) -> None:
        device = current_place().device
        event = device.create_event()
        device.record(event, stream)
        self._kept.append((device, event, tensors))
        while self._kept[0][0].done(self._kept[0][1]):
            done_device, done_event, _ = self._kept.popleft()
            done_device.destroy_event(done_event)
            if not self._kept:
                return


def staged_launch(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets_to_device` with six arguments: scale and V offset differ by pool."""
    private = PrivateRows()

    def copy_batch_block_offsets_to_device(
        input: Any,
        output: Any,
        copy_index: Any,
        index_scales: Any,
        kv_offset: Any,
        stream: int,
    ) -> Any:
        if is_on_device(input):  # already a snapshot
            return original(input, output, copy_index, index_scales, kv_offset, stream)
        if is_too_wide(input):
            private.launch(original, input, output, copy_index, index_scales, kv_offset, stream)
            return None
        stager = stagers.of(input, partial(v2, index_scales, kv_offset))
        stager.ship(memory_of(output), input, copy_index, stream=int(stream))
        return None

    return copy_batch_block_offsets_to_device


def staged_launch_unscaled(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """The older kernel with five arguments: V is K, or the page behind it; a bad page stays one in both planes."""
    rows_by_shape: dict[tuple[int, ...], Any] = {}
    private = PrivateRows()

    def copy_batch_block_offsets_to_device(
        input: Any,
        output: Any,
        copy_index: Any,
        copy_v_idx: bool,
        stream: int,
    ) -> Any:
        if is_on_device(input):
            return original(input, output, copy_index, copy_v_idx, stream)
        if is_too_wide(input):
            private.launch(original, input, output, copy_index, copy_v_idx, stream)
            return None
        table, index = input.numpy(), copy_index.numpy()
        # Ordinary memory: the stager has taken what it needs when `ship` returns.
        both = rows_by_shape.setdefault(table.shape, np.empty_like(table))
        keys, values = both[:, : len(index), 0], both[:, : len(index), 1]
        keys[...] = table[:, index, 0]
        values[...] = keys if copy_v_idx else keys + (keys != BAD_PAGE)
        stager = stagers.of(both, v1)
        stager.ship(memory_of(output), both, range(len(index)), stream=int(stream))
        return None

    return copy_batch_block_offsets_to_device


def private_per_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    """The sliding-window path ships the whole table, the copy index and scratch ranges by asynchronous copies.

    For the time of the call each of them is a fresh pinned tensor, which the host allocator gives to nobody else until
    the copy out of it is done.
    """

    def _copy_batch_block_offsets_per_layer(
        self: Any, dst_tensor: Any, request_ids: Any, copy_idx: Any, num_contexts: int, num_seqs: int
    ) -> Any:
        with _private(self, copy_idx) as rows:
            return original(self, dst_tensor, request_ids, rows, num_contexts, num_seqs)

    return _copy_batch_block_offsets_per_layer


@contextmanager
def _private(manager: Any, copy_idx: Any) -> Iterator[Any]:
    """Yields the copy index into a table that holds the batch's rows in order, in the place of the live one."""
    live = {name: getattr(manager, name) for name in (TABLE, *SCRATCH) if hasattr(manager, name)}
    fresh = {name: fresh_pinned(tensor) for name, tensor in live.items()}
    index = copy_idx.numpy().copy()
    fresh[TABLE].numpy()[:, : len(index), 0] = live[TABLE].numpy()[:, index, 0]
    rows = fresh_pinned(copy_idx)
    rows.numpy()[...] = np.arange(len(index))
    try:
        for name, tensor in fresh.items():
            setattr(manager, name, tensor)
        yield rows
    finally:
        for name, tensor in live.items():
            setattr(manager, name, tensor)


def fresh_pinned(tensor: Any) -> Any:
    return tensor.new_empty(tuple(tensor.shape), pin_memory=tensor.is_pinned())


def is_on_device(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cuda", False))


class StagedOffsetsV2:
    """The replacements, sharing their stagers."""

    def __init__(self, *, mode: str = "auto", slots: int = 3) -> None:
        stagers = Stagers(mode=mode, slots=slots)
        self.launch = partial(staged_launch, stagers)
        self.launch_unscaled = partial(staged_launch_unscaled, stagers)
        self.per_layer = private_per_layer
