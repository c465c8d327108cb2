"""A row that the overlay lends to an early copy stays as it is until it is settled, whoever writes it.

When such a copy reads is the copy engine's business. So this reads the rows at the shipment and once more when they are
settled, and notes where they differ.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from trtllm_kvfix.staging import OffsetStager
from trtllm_kvfix.staging.offset_stager import Route

Ship = Callable[..., None]


@dataclass
class Loans:
    """Early copies that may come as late as `settle` allows."""

    made: int = 0
    overwritten: int = 0
    _read: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)

    def complaints(self) -> list[str]:
        wrong = f"{self.overwritten} of {self.made} tables were written while they were lent"
        return [wrong] if self.overwritten else []

    @property
    def unsettled(self) -> int:
        return sum(map(len, self._read.values()))

    def ship(self, stager: OffsetStager, table: Any) -> None:
        self.made += 1
        live = table if isinstance(table, np.ndarray) else table.numpy()
        self._read.setdefault(id(stager), []).append((live, live.copy()))

    def settle(self, stager: OffsetStager) -> None:
        for live, read in self._read.pop(id(stager), []):
            self.overwritten += not np.array_equal(live, read)


@contextmanager
def each_ship(stand_in: Callable[[OffsetStager, Any, Ship], Ship]) -> Iterator[None]:
    """Ships go by what `stand_in` makes of a stager, a reference to its table, and the ship of their route."""
    route = OffsetStager.route

    def routed(stager: OffsetStager, dst: Any, table: Any) -> Route:
        made = route(stager, dst, table)
        made.ship = stand_in(stager, weakref.ref(table), made.ship)
        return made

    with mock.patch.object(OffsetStager, "route", routed):
        yield


@contextmanager
def watched() -> Iterator[Loans]:
    loans = Loans()
    settle = OffsetStager.settle

    def noted(stager: OffsetStager, table: Any, ship: Ship) -> Ship:
        def shipped(rows: Any, stream: int, width: int | None = None, lent: bool = False) -> None:
            ship(rows, stream, width, lent)
            if lent and stager.lends:
                loans.ship(stager, table())

        return shipped

    def settled(stager: OffsetStager) -> None:
        loans.settle(stager)
        settle(stager)

    with each_ship(noted), mock.patch.object(OffsetStager, "settle", settled):
        yield loans
