"""Takes down what attention saw: which blocks each request indexed, and which it should have.

A step's attention reads its tables when the stream comes to it, so the witness copies them off at that moment; what
they should hold it asks of the manager at the call.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .tensors import tensors

Array = npt.NDArray[np.int32]


class Corruption(NamedTuple):
    step: int
    request_id: int
    what: str  # "block offsets", "prompt lens", "host table", "lora slots" or "lora weights"
    expected: list[int]
    seen: list[int]


@dataclass(eq=False)
class Sight:
    """One step's attention saw this. `seen` is filled by the device; look when `done`."""

    step: int
    what: str
    request_ids: list[int]  # of each row
    expected: Array  # (rows, words), -1 where attention does not look
    seen: Any
    done: Any


@dataclass
class Witness:
    steps: int = 0
    corruptions: list[Corruption] = field(default_factory=list)
    _open: list[Sight] = field(default_factory=list)

    def watch(self, metadata: Any) -> None:
        """Called where the step's attention is enqueued, on its stream."""
        self.steps += 1
        manager = metadata.kv_cache_manager
        beams = [1] * metadata.num_contexts + [metadata.beam_width] * metadata.num_generations
        rows = [r for r, width in zip(metadata.request_ids, beams, strict=True) for _ in range(width)]
        truth = manager.standin_truth(metadata.request_ids, beams)
        self.take("block offsets", rows, np.moveaxis(truth, 1, 0), metadata.kv_cache_block_offsets)
        if hasattr(manager, "pool_block_indices"):
            self._compare_now(metadata, rows, truth)
        lens = np.array(metadata.prompt_lens, np.int32)[:, None]
        self.take("prompt lens", metadata.request_ids, lens, metadata.prompt_lens_cuda)

    def _compare_now(self, metadata: Any, request_ids: list[int], truth: Array) -> None:
        """Sparse attention reads the host's table at the call (surface 1.7)."""
        manager = metadata.kv_cache_manager
        indices = manager.pool_block_indices(metadata.host_kv_cache_block_offsets, len(request_ids))
        expected = np.where(truth[0, :, 0] == -1, -1, truth[0, :, 0] // manager.num_local_layers)
        sight = Sight(self.steps, "host table", list(request_ids), expected, indices, None)
        self.corruptions += corrupt_rows(sight, indices)

    def take(self, what: str, request_ids: list[int], expected: Array, table: Any) -> None:
        seen = tensors().pinned(*table.shape)
        seen.copy_(table, non_blocking=True)
        done = tensors().event()
        done.record()
        self._open.append(Sight(self.steps, what, list(request_ids), expected, seen, done))

    def judge(self) -> None:
        """Looks at every step that the device has finished."""
        finished = [sight for sight in self._open if sight.done.query()]
        self._open = [sight for sight in self._open if sight not in finished]
        for sight in finished:
            self.corruptions += corrupt_rows(sight, sight.seen.numpy())

    def corrupt(self, what: str) -> list[Corruption]:
        return [corruption for corruption in self.corruptions if corruption.what == what]


def corrupt_rows(sight: Sight, seen: Array) -> Iterator[Corruption]:
    rows = np.moveaxis(seen, 1, 0) if seen.ndim == 4 else seen
    for row, request_id in enumerate(sight.request_ids):
        expected = sight.expected[row].ravel()
        used = expected != -1
        got = rows[row].ravel()
        if not np.array_equal(got[used], expected[used]):
            yield Corruption(sight.step, request_id, sight.what, expected[used].tolist(), got[used].tolist())
