"""Blocks have contents: a step writes its tokens' keys and values, and copies all that attention would read.

A value is a pure function of the adapter, of the tokens up to its own, of the weights and of where it lies, so a block
that is foreign, half written or older than the weights when it is read is seen. Blocks are addressed as the books have
them; what the tables on the device say is the witness's business.
"""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from .._torch.pyexecutor.sampler import sampled
from . import pauses
from .tensors import tensors

PRIME = 16777619


def extend(values: list[int], tokens: list[int], adapter: int = 0, weights: int = 0) -> None:
    """One word for each token; two prefixes that differ anywhere differ from there on."""
    for token in tokens:
        before = values[-1] if values else 2166136261 + adapter
        values.append(
            (((before ^ (token + 1)) + 2 * weights) * PRIME & 0x7FFFFFFF) | 1
        )  # never what untouched memory holds


@dataclass(frozen=True, eq=False)
class Piece:
    """One step's work for one request: it reads the positions before `begin` and writes the others."""

    request_id: int
    slots: list[int]
    begin: int
    values: list[int]
    seen: Any  # copies of the blocks that are read; None where nothing is


@dataclass(frozen=True, eq=False)
class Step:
    pieces: list[Piece]
    pool: Any
    tokens_per_block: int


class Contents:
    def __init__(self) -> None:
        self.corrupt: list[int] = []  # requests
        self.reads = 0  # looked at
        self.weights = 0  # the loop computes with these; they change while it stands still
        self._open: list[tuple[Piece, Any]] = []  # and the event behind the copy
        self._values: dict[int, list[int]] = {}  # of each position that has been computed, by request

    def begin(self, batch: Any, manager: Any) -> Step:
        """Begins a step, whose layers are given the result. It is on the stream of the step, as all that follows."""
        pauses.reach(pauses.COMPUTE)
        step = Step([], manager.get_unique_primary_pool(), manager.tokens_per_block)
        for request in batch.context_requests:
            begin = request.context_current_position
            step.pieces.append(self._piece(request, manager, begin, begin + request.context_chunk_size))
        for request in batch.generation_requests:
            begin = len(self._values[request.request_id])
            step.pieces.append(self._piece(request, manager, begin, begin + 1))
        return step

    def layer(self, step: Step, index: int) -> None:
        for piece in step.pieces:
            if piece.seen is not None:
                for at in range(len(piece.seen)):
                    piece.seen[at, index].copy_(step.pool[piece.slots[at], index], non_blocking=True)
            _write(step, piece, index)

    def end(self, step: Step) -> None:
        done = tensors().event()
        done.record()
        self._open += [(piece, done) for piece in step.pieces if piece.seen is not None]

    def forget(self, request: Any) -> None:
        self._values.pop(request.request_id, None)

    def judge(self) -> None:
        """Looks at what the device has copied."""
        finished = list(takewhile(lambda read: read[1].query(), self._open))  # they are done in order
        self._open = self._open[len(finished) :]
        for piece, _ in finished:
            # blocks, layers, keys and values, tokens: to layers, keys and values, positions
            seen = np.concatenate(list(piece.seen.numpy()), axis=-1)[..., : piece.begin]
            if not np.array_equal(seen, spread(piece.values[: piece.begin], *seen.shape[:2])):
                self.corrupt.append(piece.request_id)
        self.reads += len(finished)

    def _piece(self, request: Any, manager: Any, begin: int, end: int) -> Piece:
        pool, blocks = manager.get_unique_primary_pool(), -(-begin // manager.tokens_per_block)
        seen = tensors().pinned(blocks, *pool.shape[1:]) if begin else None
        values = list(self._values_up_to(request, end))
        return Piece(request.request_id, slots_of(request, manager), begin, values, seen)

    def _values_up_to(self, request: Any, end: int) -> list[int]:
        """The host learns a token when the device has long gone on with it; here both know how it is sampled."""
        answer = [sampled(request, position) for position in range(max(0, end - request.orig_prompt_len))]
        known = self._values.setdefault(request.request_id, [])
        del known[end:]  # computed anew after a load that failed
        extend(known, (request.input_tokens + answer)[len(known) : end], request.lora_task_id or 0, self.weights)
        return known


def _write(step: Step, piece: Piece, layer: int) -> None:
    _, layers, parts, _ = step.pool.shape
    words = spread(piece.values[piece.begin :], layers, parts)[layer]
    source = tensors().pinned(*words.shape)
    source.numpy()[:] = words
    at = 0
    while at < words.shape[1]:
        block, offset = divmod(piece.begin + at, step.tokens_per_block)
        count = min(step.tokens_per_block - offset, words.shape[1] - at)
        for part in range(parts):
            target = step.pool[piece.slots[block], layer, part, offset : offset + count]
            target.copy_(source[part, at : at + count], non_blocking=True)
        at += count


def spread(values: list[int], layers: int, parts: int) -> npt.NDArray[np.int32]:
    """The words of these positions, by layer, and by key and value. No two places of a token have the same."""
    places = np.arange(layers * parts, dtype=np.int32).reshape(layers, parts, 1)
    return np.array(values, np.int32) ^ (places << 1)


def slots_of(request: Any, manager: Any) -> list[int]:
    slots: list[int] = manager.impl.standin_slots(request.request_id)
    return slots
