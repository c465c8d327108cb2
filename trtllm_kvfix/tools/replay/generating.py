"""The sequences whose answers are growing, as parallel arrays: one call into the manager grows them all."""

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.tools.replay.tokens import TokenBook


class Generating:
    def __init__(self, book: TokenBook, tokens_per_iteration: int) -> None:
        self._book = book
        self._tokens_per_iteration = tokens_per_iteration
        self._ids = np.empty(0, np.int64)
        self._length = np.empty(0, np.int64)  # positions, prompt included: all computed between two calls of grow
        self._cursor = np.empty(0, np.int64)  # where in book.answers the next token of each sequence is
        self._left = np.empty(0, np.int64)  # positions that each still grows by

    def __len__(self) -> int:
        return len(self._ids)

    def start(self, index: int, prompt_length: int) -> None:
        """The last token of an answer is never fed back, so an answer of n tokens takes n - 1 positions."""
        first, end = self._book.answer_start[index : index + 2]
        self._ids = np.append(self._ids, index)
        self._length = np.append(self._length, prompt_length)
        self._cursor = np.append(self._cursor, first)
        self._left = np.append(self._left, max(end - first - 1, 0))

    def next_counts(self) -> NDArray[np.int64]:
        return np.minimum(self._left, self._tokens_per_iteration)

    def fed(self) -> list[tuple[int, int]]:
        """Of each: its index, and the tokens of its answer that have been fed back."""
        fed = self._cursor - self._book.answer_start[self._ids]
        return list(zip(self._ids.tolist(), fed.tolist(), strict=True))

    def grow(self, manager: BlockManager) -> None:
        if not len(self._ids):
            return
        counts = self.next_counts()
        ends = np.cumsum(counts)
        within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        tokens = self._book.answers[np.repeat(self._cursor, counts) + within]
        manager.add_tokens(self._ids, counts, tokens, computed=self._length)
        self._length += counts
        self._cursor += counts
        self._left -= counts

    def take_finished(self) -> dict[int, int]:
        """Indices, and how many positions each has."""
        ended = self._left == 0
        if not ended.any():
            return {}
        finished = dict(zip(self._ids[ended].tolist(), self._length[ended].tolist(), strict=True))
        going_on = ~ended
        self._ids, self._length = self._ids[going_on], self._length[going_on]
        self._cursor, self._left = self._cursor[going_on], self._left[going_on]
        return finished
