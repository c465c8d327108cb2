"""Judges what batches compute. A kernel reads tokens by the block table that it was given: each must be its request's,
computed or loaded before, in the order of the stream."""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .v2_books import WINDOW, Move

PAGE = dict[int, object]  # a name for the prefix that ends there, by the position in the page
GROUPS = 2


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


class Contents:
    def __init__(self, tokens_per_block: int) -> None:
        self._size = tokens_per_block
        self._log: deque[Launch | Load | Move] = deque()
        self._device: dict[tuple[int, int], PAGE] = {}
        self._host: dict[tuple[int, int], PAGE] = {}
        self.wrong: list[str] = []
        self.reads = self.moves = 0

    def note(self, *entries: Launch | Load | Move) -> None:
        """In the order of the stream."""
        self._log += entries

    def judge(self) -> None:
        """Carries out what the device has done."""
        while self._log:
            entry = self._log[0]
            if isinstance(entry, Launch) and not entry.done.query():
                return
            self._log.popleft()
            if isinstance(entry, Launch):
                self._run(entry)
            elif isinstance(entry, Load):
                for group, pages in enumerate(entry.pages):
                    self._write(group, pages, entry.begin, entry.names[entry.begin : entry.end])
            else:
                self._move(*entry)

    def _move(self, kind: str, group: int, source: int, target: int) -> None:
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
            found = self._device.get((group, pages[ordinal]), {}).get(offset)
            self.reads += 1
            if found != piece.names[position]:
                self.wrong.append(
                    f"request {piece.request_id} read {found} for its token {position} in page {pages[ordinal]} of "
                    f"group {group}"
                )

    def _write(self, group: int, pages: list[int], begin: int, names: list[object]) -> None:
        for position, name in enumerate(names, begin):
            ordinal, offset = divmod(position, self._size)
            self._device.setdefault((group, pages[ordinal]), {})[offset] = name
