"""A table that V1 lends to an early copy stays as it is until the next call begins, whoever writes it.

When such a copy reads is the copy engine's business. So this reads the table at the end of a call and once more when
the next begins, and notes where they differ.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from trtllm_kvfix.fixes.staged_offsets_v1.destination import StagedDestination


@dataclass
class Loans:
    """Early copies that may come as late as the next call allows."""

    made: int = 0
    overwritten: int = 0
    _read: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)  # of each table

    def complaints(self) -> list[str]:
        wrong = f"{self.overwritten} of {self.made} tables were written while they were lent"
        return [wrong] if self.overwritten else []

    def lend(self, table: Any) -> None:
        self.made += 1
        live = table.numpy()
        self._read.setdefault(id(table), []).append((live, live.copy()))

    def settle(self, table: Any) -> None:
        for live, read in self._read.pop(id(table), []):
            self.overwritten += not np.array_equal(live, read)


@contextmanager
def watched() -> Iterator[Loans]:
    loans = Loans()
    begin, end = StagedDestination.begin, StagedDestination.end

    def settled(destination: StagedDestination) -> None:
        loans.settle(destination.table)
        begin(destination)

    def lent(destination: StagedDestination) -> None:
        if destination.lends and destination.shipped is not None:
            loans.lend(destination.table)
        end(destination)

    with (
        mock.patch.object(StagedDestination, "begin", settled),
        mock.patch.object(StagedDestination, "end", lent),
    ):
        yield loans
