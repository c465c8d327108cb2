"""What blocks hold: a step writes the keys and values of its tokens, and takes a copy of all that attention would read.

A value is a pure function of the tokens up to its own, so a block that is foreign or half written when it is read is
seen. Blocks are addressed as the books have them; what the tables on the device say is the witness's business.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._torch.pyexecutor.sampler import sampled
from . import pauses
from .tensors import tensors

WORDS_PER_TOKEN = 4
PRIME = 16777619


def extend(values: list[int], tokens: list[int]) -> None:
    """One word for each token; two prefixes that differ anywhere differ from there on."""
    for token in tokens:
        before = values[-1] if values else 2166136261
        values.append(((before ^ (token + 1)) * PRIME & 0x7FFFFFFF) | 1)  # never what untouched memory holds


@dataclass(frozen=True, eq=False)
class Read:
    """Positions from 0 on of one request."""

    request_id: int
    seen: Any
    expected: list[int]
    done: Any


class Contents:
    def __init__(self) -> None:
        self.corrupt: list[int] = []  # requests
        self.reads = 0  # looked at
        self._open: list[Read] = []
        self._values: dict[int, list[int]] = {}  # of each position that has been computed, by request

    def forward(self, batch: Any, manager: Any) -> None:
        """On the stream of the step."""
        pauses.reach(pauses.COMPUTE)
        for request in batch.context_requests:
            begin = request.context_current_position
            self._step(request, manager, begin, begin + request.context_chunk_size)
        for request in batch.generation_requests:
            begin = len(self._values[request.request_id])
            self._step(request, manager, begin, begin + 1)

    def forget(self, request: Any) -> None:
        self._values.pop(request.request_id, None)

    def judge(self) -> None:
        """Looks at what the device has copied."""
        finished = [read for read in self._open if read.done.query()]
        self._open = [read for read in self._open if read not in finished]
        for read in finished:
            seen = read.seen.numpy().reshape(-1, WORDS_PER_TOKEN)[: len(read.expected)]
            if not np.array_equal(seen, spread(read.expected)):
                self.corrupt.append(read.request_id)
        self.reads += len(finished)

    def _step(self, request: Any, manager: Any, begin: int, end: int) -> None:
        values = self._values_up_to(request, end)
        slots = slots_of(request, manager)
        if begin:
            self._read(request, manager, slots, values[:begin])
        self._write(manager, slots, begin, values[begin:end])

    def _values_up_to(self, request: Any, end: int) -> list[int]:
        """The host learns a token when the device has long gone on with it; here both know how it is sampled."""
        answer = [sampled(request, position) for position in range(max(0, end - request.orig_prompt_len))]
        known = self._values.setdefault(request.request_id, [])
        del known[end:]  # computed anew after a load that failed
        extend(known, (request.input_tokens + answer)[len(known) : end])
        return known

    def _read(self, request: Any, manager: Any, slots: list[int], expected: list[int]) -> None:
        per_block, pool = manager.tokens_per_block, manager.get_unique_primary_pool()
        blocks = -(-len(expected) // per_block)
        seen = tensors().pinned(blocks, *pool.shape[1:])
        for at in range(blocks):
            seen[at].copy_(pool[slots[at]], non_blocking=True)
        done = tensors().event()
        done.record()
        self._open.append(Read(request.request_id, seen, expected, done))

    def _write(self, manager: Any, slots: list[int], begin: int, values: list[int]) -> None:
        per_block, pool = manager.tokens_per_block, manager.get_unique_primary_pool()
        source = tensors().pinned(len(values), WORDS_PER_TOKEN)
        source.numpy()[:] = spread(values)
        at = 0
        while at < len(values):
            block, offset = divmod(begin + at, per_block)
            count = min(per_block - offset, len(values) - at)
            pool[slots[block]][offset : offset + count].copy_(source[at : at + count], non_blocking=True)
            at += count


def spread(values: list[int]) -> npt.NDArray[np.int32]:
    return np.repeat(np.array(values, np.int32)[:, None], WORDS_PER_TOKEN, axis=1)


def slots_of(request: Any, manager: Any) -> list[int]:
    slots: list[int] = manager.impl.standin_slots(request.request_id)
    return slots
