"""Measures how costs grow when a tenant chooses them: every attack at doubling sizes, beside a benign one.

Processor time of the thread, all sizes and both tenants by turns in every round. Two limits: double the size costs at
most 2.3 times as much (the mean over the curve; 1.5 times where only what is there doubles), and the attack at most
twice what the benign tenant costs. The control is `known seed`: the same prompts where the attacker knows the
manager's seed must cost more than that.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from time import thread_time_ns
from typing import NamedTuple

import numpy as np
from attacks import AIMED_AT, ATTACKS, DRAWN, Attack
from measure import FACTS, RESULTS, Summary, append, pin_to_one_core, quiet_garbage_collector

ROUNDS = 9
GROWTH_MAX = 2.3  # for double the size
FLAT_MAX = 1.5  # the same, where what is asked for stays as it is
BENIGN_MAX = 2.0  # times what the benign tenant costs
COLUMNS = (*FACTS, "attack", "size", "tenant", "us", "p20", "p80", "ratio_to_half", "ratio_to_benign", "rounds")


class Point(NamedTuple):
    size: int
    tenant: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", choices=[attack.name for attack in ATTACKS], help="this one alone")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes, three rounds")
    arguments = parser.parse_args()
    pin_to_one_core()
    over: list[str] = []
    for attack in ATTACKS:
        if arguments.attack in (None, attack.name):
            sizes, rounds = (attack.sizes[:2], 3) if arguments.quick else (attack.sizes, arguments.rounds)
            made = Curves(attack, sizes, rounds)
            append(arguments.results / "attacks.csv", COLUMNS, made.rows())
            over += made.over()
    if over and not arguments.quick:
        sys.exit("over the limit:\n" + "\n".join(over))


class Curves:
    """The costs of one attack as measured, in microseconds of each round."""

    def __init__(self, attack: Attack, sizes: tuple[int, ...], rounds: int) -> None:
        self._attack = attack
        self._rounds = rounds
        self._points = [Point(size, tenant) for size in sizes for tenant in ("benign", "hostile")]
        if attack.aims_at_seed:
            self._points.append(Point(sizes[0], "known seed"))
        self._us: dict[Point, list[float]] = {point: [] for point in self._points}
        with quiet_garbage_collector():
            for number in range(rounds + 1):
                for point in self._points:
                    spent = self._timed(point)
                    if number != 0:  # the first round warms up
                        self._us[point].append(spent)

    def rows(self) -> Iterator[list[object]]:
        for point in self._points:
            summary = Summary.of(self._us[point])
            half, benign = self._to_half(point), self._to_benign(point)
            numbers = [f"{value:.6g}" for value in (summary.median, summary.p20, summary.p80)]
            ratios = ["" if ratio is None else f"{ratio:.3g}" for ratio in (half, benign)]
            print(
                f"{self._attack.name:<22} {point.size:>8} {point.tenant:<10} {numbers[0]:>9} us"
                f"  half x{ratios[0] or '-':<5} benign x{ratios[1] or '-'}",
                flush=True,
            )
            yield [self._attack.name, point.size, point.tenant, *numbers, *ratios, summary.rounds]

    def over(self) -> Iterator[str]:
        hostile = [point for point in self._points if point.tenant == "hostile"]
        doublings = [ratio for point in hostile if (ratio := self._to_half(point)) is not None]
        growth = float(np.exp(np.mean(np.log(doublings))))  # one doubling alone may leave one of the processor's caches
        if growth > (FLAT_MAX if self._attack.flat else GROWTH_MAX):
            yield f"{self._attack.name}: {growth:.2f} times as much for double the size"
        for point in self._points:
            benign = self._to_benign(point)
            if benign is None:
                continue
            told = f"{self._attack.name}, {point.size}, {point.tenant}: {benign:.2f} times the benign tenant"
            if point.tenant == "hostile" and benign > BENIGN_MAX:
                yield told
            if point.tenant == "known seed" and benign <= BENIGN_MAX:
                yield f"{told}, so the attack is none"

    def _timed(self, point: Point) -> float:
        seed = AIMED_AT if point.tenant == "known seed" else DRAWN
        call = self._attack.prepare(point.size, point.tenant != "benign", seed)
        began = thread_time_ns()
        call()
        return (thread_time_ns() - began) / 1e3

    def _to_half(self, point: Point) -> float | None:
        return self._ratio(point, Point(point.size // 2, point.tenant))

    def _to_benign(self, point: Point) -> float | None:
        return None if point.tenant == "benign" else self._ratio(point, Point(point.size, "benign"))

    def _ratio(self, point: Point, base: Point) -> float | None:
        """The ratio within one round, by turns; the median of all rounds."""
        if base not in self._us:
            return None
        return float(np.median(np.divide(self._us[point], self._us[base])))


if __name__ == "__main__":
    main()
