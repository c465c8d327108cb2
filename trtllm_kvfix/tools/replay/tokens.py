"""Token values of a replayed request's prompt and answer.

Values of a trace that gives tokens are used as they are. The others are made so that they are equal exactly where the
trace says so: an id always spells the same tokens, two ids never begin alike, and an invented answer repeats nothing.
The three kinds live in ranges of their own below 2**31, so that none can match another by chance.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.tools.replay.trace import TOKENS_PER_HASH_ID, TraceRequest

PROMPT_BASE = 1 << 24  # above any vocabulary
# A prime: n * tokens_per_hash_id modulo it differs for every n below it, so ids keep apart however many there are.
PROMPT_SPAN = 1_056_964_501
ANSWER_BASE = 1 << 30
ANSWER_SPAN = 1 << 30
_NO_IDS: NDArray[np.int64] = np.empty(0, np.int64)


class TokenBook:
    """The tokens of a list of requests, which are named by their index in it."""

    def __init__(self, requests: Sequence[TraceRequest], tokens_per_hash_id: int = TOKENS_PER_HASH_ID) -> None:
        self._requests = requests
        self._spread = np.arange(tokens_per_hash_id, dtype=np.int32)
        lengths = np.array([request.output_length for request in requests], dtype=np.int64)
        # Places answer_start[i] to answer_start[i + 1] of all answers are those of request i. Values are made when they
        # are asked for: a trace may name a length that no memory holds.
        self.answer_start = np.concatenate(([0], np.cumsum(lengths)))
        counts = [len(ids) for ids in _ids_of(requests)]
        # first[first_start[i] : first_start[i + 1]] are the ids of request i, each as the place of its first token.
        self._first_start = [0, *accumulate(counts)]
        self._first = (_ordinals_of(requests) * tokens_per_hash_id % PROMPT_SPAN).astype(np.int32)
        self._wraps = int(self._first.max(initial=0)) > PROMPT_SPAN - tokens_per_hash_id

    @property
    def tokens_per_hash_id(self) -> int:
        return len(self._spread)

    def ids(self, index: int) -> NDArray[np.int32]:
        """The hash ids of a prompt, and of its answer where they are given, as numbers that differ where they do."""
        return self._first[self._first_start[index] : self._first_start[index + 1]]

    def prompt(self, index: int) -> NDArray[np.int32]:
        request = self._requests[index]
        return request.tokens if request.tokens is not None else self._spelled(index)[: request.input_length]

    def answer(self, index: int) -> NDArray[np.int32]:
        request = self._requests[index]
        if request.output_tokens is not None:
            return request.output_tokens
        places = np.arange(self.answer_start[index], self.answer_start[index + 1], dtype=np.int64)
        invented = (ANSWER_BASE + places % ANSWER_SPAN).astype(np.int32)
        if request.output_hash_ids is None:
            return invented
        return np.concatenate((self._spelled(index)[request.input_length : request.computed], invented[-1:]))

    def _spelled(self, index: int) -> NDArray[np.int32]:
        first = self.ids(index)
        if self._wraps:
            values = (first[:, None].astype(np.int64) + self._spread).reshape(-1)
            return (PROMPT_BASE + values % PROMPT_SPAN).astype(np.int32)
        return ((first + PROMPT_BASE)[:, None] + self._spread).reshape(-1)


def _ordinals_of(requests: Sequence[TraceRequest]) -> NDArray[np.int64]:
    """The hash ids of all as small numbers, because the ids themselves may be any 63-bit value."""
    _, ordinals = np.unique(np.concatenate([*_ids_of(requests), _NO_IDS]), return_inverse=True)
    return ordinals.astype(np.int64)


def _ids_of(requests: Sequence[TraceRequest]) -> list[NDArray[np.int64]]:
    """Of each request: those of its prompt, then those of its answer."""
    ids = [(request.hash_ids, request.output_hash_ids) for request in requests]
    return [
        _NO_IDS if prompt is None else prompt if answer is None else np.concatenate((prompt, answer))
        for prompt, answer in ids
    ]
