"""The sequences whose answers are growing. How each will grow is known when it starts, so a calendar names the
iterations in which something happens: it needs a block, it has filled one, it ends. The manager gets the tokens
between two of these together, which changes none of its decisions."""

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.tools.replay.tokens import TokenBook


@dataclass(slots=True)
class _Answer:
    index: int
    prompt_length: int
    begun: int  # growths of all before its first
    left: int  # positions that it grows by in all
    growths: int  # of its own, until it ends
    told: int = 0  # positions that the manager knows of


class Generating:
    def __init__(self, book: TokenBook, tokens_per_block: int, tokens_per_iteration: int) -> None:
        self._book = book
        self._tokens_per_block = tokens_per_block
        self._tokens_per_iteration = tokens_per_iteration
        self._growths = 0
        self._begun = 0
        self._live: dict[int, _Answer] = {}  # by when they began, which is the order in which they grow
        self._calendar: list[tuple[int, int]] = []  # a heap: the growth, and the sequence that is due in it
        self._due: list[int] = []  # sequences that are due in this iteration
        self._lacking: Counter[int] = Counter()  # tokens by which a growth is smaller, because answers end with it
        self._empty: list[tuple[int, int]] = []  # began in this iteration with nothing to grow by

    def __len__(self) -> int:
        return len(self._live) + len(self._empty)

    def start(self, index: int, prompt_length: int) -> None:
        """The last token of an answer is never fed back, so an answer of n tokens takes n - 1 positions."""
        first, end = self._book.answer_start[index : index + 2].tolist()
        left = end - first - 1
        if left <= 0:
            self._empty.append((index, prompt_length))
            return
        growths = -(-left // self._tokens_per_iteration)
        self._live[self._begun] = _Answer(index, prompt_length, self._growths, left, growths)
        self._lacking[self._growths + growths] += growths * self._tokens_per_iteration - left
        heappush(self._calendar, (self._growths + 1, self._begun))
        self._begun += 1

    def tokens_next(self) -> int:
        """By which all grow together in this iteration."""
        return len(self._live) * self._tokens_per_iteration - self._lacking[self._growths + 1]

    def quiet(self) -> int:
        """Iterations from now on in which all grow within blocks that they have."""
        return self._calendar[0][0] - self._growths - 1 if self._calendar else 0

    def skip(self, iterations: int) -> None:
        self._growths += iterations

    def computed(self, *, of_all: bool) -> list[tuple[int, int]]:
        """Of each that has something to do in this iteration, or of all: its index, and its positions before it."""
        self._look_up()
        answers = self._live.values() if of_all else (self._live[number] for number in self._due)
        return [(answer.index, self._length(answer, self._growths)) for answer in answers]

    def grow(self, manager: BlockManager) -> None:
        self._look_up()
        self._growths += 1
        if not self._due:
            return
        ids, counts, computed, tokens = [], [], [], []
        for answer in map(self._live.__getitem__, self._due):
            grown = self._length(answer, self._growths) - answer.prompt_length
            first = int(self._book.answer_start[answer.index])
            ids.append(answer.index)
            counts.append(grown - answer.told)
            computed.append(answer.prompt_length + answer.told)
            tokens.append(self._book.answers[first + answer.told : first + grown])
            answer.told = grown
        manager.add_tokens(ids, counts, tokens[0] if len(tokens) == 1 else np.concatenate(tokens), computed=computed)

    def take_finished(self) -> dict[int, int]:
        """Indices, and how many positions each has."""
        finished = {}
        for number in self._due:
            answer = self._live[number]
            if answer.told == answer.left:
                finished[answer.index] = answer.prompt_length + answer.left
                del self._live[number]
            else:
                heappush(self._calendar, (answer.begun + self._next(answer), number))
        self._due.clear()
        self._lacking.pop(self._growths, None)
        finished.update(self._empty)
        self._empty.clear()
        return finished

    def _look_up(self) -> None:
        while self._calendar and self._calendar[0][0] == self._growths + 1:
            self._due.append(heappop(self._calendar)[1])

    def _length(self, answer: _Answer, growths: int) -> int:
        return answer.prompt_length + min((growths - answer.begun) * self._tokens_per_iteration, answer.left)

    def _next(self, answer: _Answer) -> int:
        """The first of its growths to come that needs a block, or that a full one was computed before."""
        step, size, done = self._tokens_per_iteration, self._tokens_per_block, self._growths - answer.begun
        full = answer.prompt_length + (done - 1) * step  # computed before the last growth
        to_boundary = (full // size + 1) * size - answer.prompt_length
        crossing = to_boundary // step + 1
        return min(crossing if crossing > done else -(-to_boundary // step) + 1, answer.growths)
