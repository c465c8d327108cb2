"""Compute the offsets that a launch of V2's kernel should write, for comparison with those that arrive."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trtllm_kvfix.staging.read_back import BAD_PAGE, ReadBack, Shipment
from trtllm_kvfix.staging.stagers import memory_of

Meaning = Callable[..., Shipment | None]


def looked_at(read_back: ReadBack, meaning: Meaning, launch: Callable[..., Any]) -> Callable[..., Any]:
    """Make the launch and read back what it wrote. The caller must not write its arguments meanwhile."""

    def copy_batch_block_offsets_to_device(*args: Any, **kwargs: Any) -> Any:
        result = launch(*args, **kwargs)
        if read_back.due():
            read_back.look(partial(meaning, *args, **kwargs))
        return result

    return copy_batch_block_offsets_to_device


def meant_scaled(
    input: Any, output: Any, copy_index: Any, index_scales: Any, kv_offset: Any, stream: int
) -> Shipment | None:
    """With six arguments: scale and V offset differ by pool."""
    return _rows(input, output, copy_index, stream, np.array(index_scales.tolist()), np.array(kv_offset.tolist()))


def meant_unscaled(input: Any, output: Any, copy_index: Any, copy_v_idx: bool, stream: int) -> Shipment | None:
    """With five: V is K, or the page behind it."""
    return _rows(input, output, copy_index, stream, np.array([1]), np.array([0 if copy_v_idx else 1]))


def _rows(input: Any, output: Any, copy_index: Any, stream: int, scales: Any, v_offsets: Any) -> Shipment | None:
    if getattr(input, "is_cuda", False):
        return None  # a snapshot on the device, which only the device can read
    pages = input.numpy()[:, copy_index.numpy(), 0]
    meant = np.full((*pages.shape[:2], 2, pages.shape[2]), BAD_PAGE, np.int32)
    keys = pages * scales[:, None, None]
    good = pages != BAD_PAGE
    meant[:, :, 0][good] = keys[good]
    meant[:, :, 1][good] = (keys + v_offsets[:, None, None])[good]
    return Shipment(memory_of(output), meant, int(stream))
