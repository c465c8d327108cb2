"""Judges what batches compute. A kernel reads tokens by the block table that it was given: each must be its request's,
computed or loaded before, in the order of the stream."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

WINDOW = 12  # of the group that slides
Move = tuple[str, int, int, int]  # kind, group, source, target
GROUPS = 2


class Token(NamedTuple):
    name: object  # for the prefix that ends there
    bits: int  # others at each write: kernels do not give the same bits twice


PAGE = dict[int, Token]  # by the position in the page


class Piece(NamedTuple):
    request_id: int
    begin: int
    end: int
    names: list[object]  # up to its end
    drafts: int


@dataclass(frozen=True, eq=False)
class Launch:
    pieces: list[Piece]
    seen: Any  # the block table on the device, when the kernel ran
    scales: list[int]
    done: Any


class Load(NamedTuple):
    """Into the pages that the request had when it began."""

    pages: list[list[int]]  # by group
    begin: int
    end: int
    names: list[object]


class Order(Protocol):
    """In which order work is carried out. By default it is that in which it was enqueued."""

    def enqueue(self, stream: int, run: Callable[[], None], ready: Callable[[], bool]) -> None: ...
    def step(self) -> bool:
        """Whether there was anything that could go on."""


class AsEnqueued:
    def __init__(self) -> None:
        self._log: deque[tuple[Callable[[], None], Callable[[], bool]]] = deque()

    def enqueue(self, stream: int, run: Callable[[], None], ready: Callable[[], bool]) -> None:
        del stream
        self._log.append((run, ready))

    def step(self) -> bool:
        can = bool(self._log) and self._log[0][1]()
        if can:
            self._log.popleft()[0]()
        return can


class Contents:
    def __init__(self, tokens_per_block: int, order: Order, stream: int) -> None:
        self._size, self._order, self._stream = tokens_per_block, order, stream
        self._device: dict[tuple[int, int], PAGE] = {}
        self._host: dict[tuple[int, int], PAGE] = {}
        self._writes = count()
        self.wrong: list[str] = []
        self.reads = self.moves = 0

    def note(self, *entries: Launch | Load | Move) -> None:
        """On the stream of the steps."""
        for entry in entries:
            ready = entry.done.query if isinstance(entry, Launch) else lambda: True
            self._order.enqueue(self._stream, partial(self.carry_out, entry), ready)

    def judge(self) -> None:
        """Carries out what the device has done."""
        while self._order.step():
            pass

    def digest(self, group: int, page: int) -> int:
        """Of what is there now."""
        return hash(tuple(sorted((at, token.bits) for at, token in self._device.get((group, page), {}).items())))

    def carry_out(self, entry: Launch | Load | Move) -> None:
        if isinstance(entry, Launch):
            self._run(entry)
        elif isinstance(entry, Load):
            for group, pages in enumerate(entry.pages):
                self._write(group, pages, entry.begin, entry.names[entry.begin : entry.end])
        else:
            self.move(*entry)

    def move(self, kind: str, group: int, source: int, target: int) -> None:
        origin = self._host if kind == "onboard" else self._device
        goal = self._host if kind == "offload" else self._device
        goal[group, target] = dict(origin.get((group, source), {}))
        self.moves += 1

    def _run(self, launch: Launch) -> None:
        keys = np.moveaxis(launch.seen.numpy()[:, : len(launch.pieces), 0], 1, 0)
        rows = [[(keys[row, g] // launch.scales[g]).tolist() for g in range(GROUPS)] for row in range(len(keys))]
        for piece, pages in zip(launch.pieces, rows, strict=True):
            self._read(0, pages[0], 0, piece)
            self._read(1, pages[1], max(0, piece.begin + 1 - WINDOW), piece)
        for piece, pages in zip(launch.pieces, rows, strict=True):
            guesses = [("a draft of", piece.request_id, piece.end, number) for number in range(piece.drafts)]
            for group in range(GROUPS):
                self._write(group, pages[group], piece.begin, [*piece.names[piece.begin : piece.end], *guesses])

    def _read(self, group: int, pages: list[int], first: int, piece: Piece) -> None:
        for position in range(first, piece.begin):
            ordinal, offset = divmod(position, self._size)
            token = self._device.get((group, pages[ordinal]), {}).get(offset)
            found = None if token is None else token.name
            self.reads += 1
            if found != piece.names[position]:
                self.wrong.append(
                    f"request {piece.request_id} read {found} for its token {position} in page {pages[ordinal]} of "
                    f"group {group}"
                )

    def _write(self, group: int, pages: list[int], begin: int, names: list[object]) -> None:
        for position, name in enumerate(names, begin):
            ordinal, offset = divmod(position, self._size)
            self._device.setdefault((group, pages[ordinal]), {})[offset] = Token(name, next(self._writes))
