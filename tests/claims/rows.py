"""The rows of bench/results, chosen by what stands in their columns."""

import csv
from functools import cache

from tests.claims.pages import ROOT

RESULTS = ROOT / "bench" / "results"
Row = dict[str, str]


class NoSuchRow(AssertionError):
    """No row, or more than one, fits a claim."""


@cache
def read(file: str) -> list[Row]:
    path = RESULTS / file
    if not path.exists():
        raise NoSuchRow(f"there is no bench/results/{file}")
    with path.open(newline="") as opened:
        return list(csv.DictReader(opened))


class Rows:
    """Those of one file that have these values. A date fits by its beginning."""

    def __init__(self, file: str, common: Row) -> None:
        self.file = file
        self.common = common
        self.all = self._fitting(read(file), common)
        if not self.all:
            raise NoSuchRow(f"bench/results/{file} has no row with {common}")

    def value(self, column: str = "median", **wanted: object) -> float:
        found = self.each(column, **wanted)
        if len(found) != 1:
            raise NoSuchRow(f"{len(found)} rows of bench/results/{self.file} have {self.common | wanted}, not one")
        return found[0]

    def each(self, column: str = "median", **wanted: object) -> list[float]:
        rows = self._fitting(self.all, {name: str(value) for name, value in wanted.items()})
        if not rows:
            raise NoSuchRow(f"no row of bench/results/{self.file} has {self.common | wanted}")
        return [float(row[column]) for row in rows]

    def _fitting(self, rows: list[Row], wanted: Row) -> list[Row]:
        for name in wanted:
            if name not in rows[0]:
                raise NoSuchRow(f"bench/results/{self.file} has no column {name}, but {', '.join(rows[0])}")
        return [row for row in rows if all(_fits(name, row[name], value) for name, value in wanted.items())]


def _fits(name: str, found: str, wanted: str) -> bool:
    return found.startswith(wanted) if name == "date" else found == wanted
