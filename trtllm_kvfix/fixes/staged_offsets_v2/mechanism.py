"""V2 block offsets: the kernel reads only what is ours, never the live table or the shared copy index (H2).

If the cache writes into a row later, in the same iteration or because the row has a new owner, that does not reach an
earlier call. The rows of the batch are read out of the live table during the call; or, where a copy engine reads them,
before any writer can reach them again (lending.py).

Where our own code fails, upstream's kernel is launched as the caller asked, and the call returns when it has run. A fix
that stands down does the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trtllm_kvfix.fixes.staged_offsets_v2.copy_filter import CopyFilter
from trtllm_kvfix.fixes.staged_offsets_v2.lending import TABLE, Lender, Lending
from trtllm_kvfix.fixes.staged_offsets_v2.private_rows import Lot, fresh_pinned, keep_until_read, private_lot
from trtllm_kvfix.fixes.staged_offsets_v2.way import Way
from trtllm_kvfix.fixes.waits import finish
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.staging import OffsetStager
from trtllm_kvfix.staging.stagers import Stagers, is_too_wide, memory_of, v1, v2

ID = "staged-offsets-v2"
BAD_PAGE = -1
PER_LAYER = "_copy_batch_block_offsets_per_layer"
# Written in place at every call of the per-layer path, and read by asynchronous copies.
SCRATCH = ("_host_scratch_begs_staging", "_host_scratch_ends_staging", "_host_scratch_slots_staging")

# The outcome of a launch: None if it has been shipped, else the arguments of upstream's kernel, in their order, and
# the memory of ours among them.
Staged = tuple[tuple[Any, ...], Lot | None] | None


def lending_copy(lending: Lending, copy_filter: CopyFilter, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets` of the manager: what the launch inside it ships may be read after it has returned. It
    may launch nothing, where it has recorded the same rows for the same tensor."""
    tried = fuse.of(ID)

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            copy_filter.forget(dst_tensor)
        except Exception as error:
            tried.fault(error)
        lender = lending.during(self)
        try:
            return original(self, dst_tensor, *args, **kwargs)
        finally:
            if lender is not None:
                lending.leave(lender)

    return copy_batch_block_offsets


def staged_launch(stagers: Stagers, lending: Lending, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets_to_device` with six arguments: scale and V offset differ by pool."""

    def stage(input: Any, output: Any, copy_index: Any, index_scales: Any, kv_offset: Any, stream: int) -> Staged:
        lender = lending.lender()
        way = None if lender is None else lender.way
        if lender is None or way is None or not way.leads(input, output, index_scales, kv_offset):
            return stage_anew(lender, input, output, copy_index, index_scales, kv_offset, stream)
        rows = copy_index.numpy()
        lender.lend_to(way.stager)
        way.ship(rows, stream, None, True)
        flight.note(flight.SHIPPED, len(rows), way.pools)
        return None

    def stage_anew(
        lender: Lender | None,
        input: Any,
        output: Any,
        copy_index: Any,
        index_scales: Any,
        kv_offset: Any,
        stream: int,
    ) -> Staged:
        if is_on_device(input):  # already a snapshot
            return (input, output, copy_index, index_scales, kv_offset, stream), None
        stager = None if is_too_wide(input) else stagers.of_lasting(v2, input, index_scales, kv_offset)
        if stager is None:
            lot = private_lot(input, copy_index)
            return (lot.rows, output, lot.order, index_scales, kv_offset, stream), lot
        lent = lender is not None and stager.lends and lender.lends(input)
        if lender is not None and lent:
            lender.way = Way(stager, input, output, index_scales, kv_offset)
            lender.lend_to(stager)
        stager.ship(memory_of(output), input, copy_index, stream=int(stream), lent=lent)
        flight.note(flight.SHIPPED, copy_index.shape[0], input.shape[0])
        return None

    return _launching(original, stage)


def staged_launch_unscaled(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """The older kernel with five arguments: V is K, or the page behind it; a bad page stays one in both planes."""
    # Rows with both planes, for each table as long as its stager lives: another engine may launch from a table of the
    # same shape, in its own thread, before these have been read.
    scratch: WeakKeyDictionary[OffsetStager, Any] = WeakKeyDictionary()

    def stage(input: Any, output: Any, copy_index: Any, copy_v_idx: bool, stream: int) -> Staged:
        if is_on_device(input):
            return (input, output, copy_index, copy_v_idx, stream), None
        if is_too_wide(input):
            lot = private_lot(input, copy_index)
            return (lot.rows, output, lot.order, copy_v_idx, stream), lot
        table, index = input.numpy(), copy_index.numpy()
        stager = stagers.of(input, v1)
        # Ordinary memory: the stager has taken what it needs when `ship` returns.
        both = scratch.get(stager)
        if both is None:
            both = scratch[stager] = np.empty_like(table)
        keys, values = both[:, : len(index), 0], both[:, : len(index), 1]
        keys[...] = table[:, index, 0]
        values[...] = keys if copy_v_idx else keys + (keys != BAD_PAGE)
        stager.ship(memory_of(output), both, range(len(index)), stream=int(stream))
        flight.note(flight.SHIPPED, index.shape[0], both.shape[0])
        return None

    return _launching(original, stage)


def _launching(original: Callable[..., Any], stage: Callable[..., Staged]) -> Callable[..., Any]:
    tried = fuse.of(ID)

    def copy_batch_block_offsets_to_device(*args: Any, **kwargs: Any) -> Any:
        failed = tried.blown
        if not failed:
            try:
                staged = stage(*args, **kwargs)
            except Exception as error:
                tried.fault(error)
                failed = True
        if failed:
            result = original(*args, **kwargs)
            finish(_stream(args, kwargs))
            return result
        if staged is None:
            tried.in_a_row = 0
            return None
        arguments, lot = staged
        result = original(*arguments)
        if lot is not None:
            try:
                keep_until_read(lot, int(arguments[-1]))
            except Exception as error:
                tried.fault(error)
                finish(int(arguments[-1]))
                return result
        tried.in_a_row = 0
        return result

    return copy_batch_block_offsets_to_device


def _stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The stream of a launch: the last argument."""
    return int(kwargs["stream"] if "stream" in kwargs else args[-1])


def private_per_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    """The sliding-window path ships the whole table, the copy index and scratch ranges by asynchronous copies.

    During the call each of them is a fresh pinned tensor, which the host allocator does not reuse until the copy out of
    it is done.
    """
    tried = fuse.of(ID)

    def _copy_batch_block_offsets_per_layer(
        self: Any, dst_tensor: Any, request_ids: Any, copy_idx: Any, *args: Any, **kwargs: Any
    ) -> Any:
        fresh = None
        if not tried.blown:
            try:
                live, fresh, rows = _private(self, copy_idx)
            except Exception as error:
                tried.fault(error)
        if fresh is None:
            result = original(self, dst_tensor, request_ids, copy_idx, *args, **kwargs)
            finish()
            return result
        tried.in_a_row = 0
        vars(self).update(fresh)
        try:
            return original(self, dst_tensor, request_ids, rows, *args, **kwargs)
        finally:
            vars(self).update(live)

    return _copy_batch_block_offsets_per_layer


def _private(manager: Any, copy_idx: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The manager's tensors, what takes their place for a call, and the copy index into a table that holds the batch's
    rows in order."""
    live = {name: vars(manager)[name] for name in (TABLE, *SCRATCH) if name in vars(manager)}
    fresh = {name: fresh_pinned(tensor) for name, tensor in live.items()}
    index = copy_idx.numpy().copy()
    fresh[TABLE].numpy()[:, : len(index), 0] = live[TABLE].numpy()[:, index, 0]
    rows = fresh_pinned(copy_idx)
    rows.numpy()[...] = np.arange(len(index))
    return live, fresh, rows


def is_on_device(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cuda", False))


def not_covered(original: Callable[..., Any]) -> Callable[..., Any]:
    """`StepInputStage.block_copy` notes the addresses of the live table and copy index for a kernel that `commit`
    launches. Its callers know the answer "not covered": they then make the launch that is fixed above."""
    del original

    def block_copy(*_args: Any, **_kwargs: Any) -> bool:
        return False

    return block_copy


class StagedOffsetsV2:
    """The replacements, sharing their stagers."""

    def __init__(self, *, mode: str = "auto", slots: int = 3) -> None:
        stagers = Stagers(mode=mode, slots=slots)
        self.lending = Lending(fuse.of(ID))
        self.copy = partial(lending_copy, self.lending, CopyFilter())
        self.launch = partial(staged_launch, stagers, self.lending)
        self.launch_unscaled = partial(staged_launch_unscaled, stagers)
        self.per_layer = private_per_layer
