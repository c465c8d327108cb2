"""Admission, append and finish over the workloads, as ratios to the floor.

One process; each round runs the floor, ours in every variant, peers where there are any, and the floor again. A ratio
is taken within a round, so a machine that slows down for a while slows both sides. The second floor shows the method's
noise: rounds in which it differs much from the first are repeated. The first round warms up and is not counted.
ours.py and docs/benchmarks.md say what each metric times.
"""

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from floor import Costs as FloorCosts
from floor import Floor
from measure import RESULTS, Row, Summary, pin_to_one_core, report
from ours import OURS, VARIANTS, Costs, run
from peers import Peer, PeerCosts, load_peers
from workloads import BUILDERS, Tokens, Workload, build

ROUNDS = 7
# A round whose two floors differ by more than this was disturbed by something else on the machine; it is repeated.
DRIFT_MAX = 1.2
DISTURBED_MAX = 3  # as many times the rounds wanted
FLOOR_AGAIN = "floor, again"


class Figures(NamedTuple):
    """One pass in numbers that compare across managers."""

    admit_us: float  # per request, without registering where that is a call of its own
    store_us: float
    finish_us: float
    step_ns: float | None  # per generated token

    @property
    def admit_store_us(self) -> float:
        return self.admit_us + self.store_us

    @property
    def whole_us(self) -> float:
        return self.admit_us + self.store_us + self.finish_us


METRICS: dict[str, Callable[[Figures], float | None]] = {
    "admit_us_per_request": lambda figures: figures.admit_us,
    "admit_store_us_per_request": lambda figures: figures.admit_store_us,
    "admit_store_finish_us_per_request": lambda figures: figures.whole_us,
    "append_ns_per_token": lambda figures: figures.step_ns,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(BUILDERS), help="default: all")
    parser.add_argument("--block-sizes", default="16,32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peers", type=Path, metavar="DIR", help="a folder with drivers of other managers")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="two workloads, one block size, three rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workloads, arguments.block_sizes, arguments.rounds = "W2,W3", "32", 3
    pin_to_one_core()
    floor = Floor()
    for name in arguments.workloads.split(","):
        workload, peers = build(name), load_peers(arguments.peers, name)
        for block_size in map(int, arguments.block_sizes.split(",")):
            rounds = measure(floor, workload, block_size, peers, arguments.rounds)
            # Peers leave the caches of the machine cold and the heap large: such rows are kept apart.
            file_name = "admission_peers.csv" if peers else "admission.csv"
            report(file_name, rows(name, block_size, rounds), arguments.results)


def measure(
    floor: Floor, workload: Workload, block_size: int, peers: Sequence[Peer], count: int
) -> list[dict[str, Figures]]:
    """`count` rounds that nothing disturbed, or the last `count` where too many were disturbed to wait for."""
    stream = workload.flattened()
    one_round(floor, workload, stream, block_size, peers)  # warms up
    calm: list[dict[str, Figures]] = []
    disturbed: list[dict[str, Figures]] = []
    while len(calm) < count and len(disturbed) < DISTURBED_MAX * count:
        figures = one_round(floor, workload, stream, block_size, peers)
        drift = figures[FLOOR_AGAIN].whole_us / figures["floor"].whole_us
        (calm if 1 / DRIFT_MAX < drift < DRIFT_MAX else disturbed).append(figures)
    if disturbed:
        print(f"{workload.name}: {len(disturbed)} of {len(calm) + len(disturbed)} rounds were disturbed")
    return calm if len(calm) == count else disturbed[-count:]


def one_round(
    floor: Floor, workload: Workload, stream: Tokens, block_size: int, peers: Sequence[Peer]
) -> dict[str, Figures]:
    floor_costs = floor.run(workload, stream, block_size)
    figures = {"floor": of_floor(floor_costs, workload)}
    for variant in VARIANTS:
        costs = run(workload, block_size, variant)
        _check_reuse(costs, floor_costs, workload, variant.partial_reuse)
        figures[variant.name] = of_ours(costs, workload)
    for peer in peers:
        figures[peer.name] = of_peer(peer.run(workload.name, block_size))
    figures[FLOOR_AGAIN] = of_floor(floor.run(workload, stream, block_size), workload)
    return figures


def rows(workload: str, block_size: int, rounds: Sequence[dict[str, Figures]]) -> Iterator[Row]:
    for manager in rounds[0]:
        for metric, value_of in METRICS.items():
            if metric not in _metrics_of(manager):
                continue
            pairs = [(value_of(figures[manager]), value_of(figures["floor"])) for figures in rounds]
            values = [(value, base) for value, base in pairs if value is not None and base is not None]
            if values:
                ratios = None if manager == "floor" else Summary.of([value / base for value, base in values])
                yield Row(workload, block_size, manager, metric, Summary.of([value for value, _ in values]), ratios)


def _metrics_of(manager: str) -> Collection[str]:
    """Variants differ in their admission alone; who registers while admitting has no store of its own."""
    if manager == OURS.name:
        return METRICS
    if manager in {variant.name for variant in VARIANTS}:
        return ["admit_us_per_request"]
    return METRICS.keys() - {"admit_store_us_per_request"}


def of_floor(costs: FloorCosts, workload: Workload) -> Figures:
    """The floor registers blocks while it admits them, so its store is part of its admission."""
    requests = workload.requests_timed
    step_ns = int(costs.step_ns.sum()) / workload.tokens_generated if workload.steps else None
    return Figures(
        int(costs.admit_ns.sum()) / requests / 1e3, 0.0, int(costs.finish_ns.sum()) / requests / 1e3, step_ns
    )


def of_ours(costs: Costs, workload: Workload) -> Figures:
    requests = workload.requests_timed
    step_ns = int(costs.step_ns.sum()) / workload.tokens_generated if workload.steps else None
    admit, store, finish = (int(ns.sum()) / requests / 1e3 for ns in (costs.admit_ns, costs.store_ns, costs.finish_ns))
    return Figures(admit, store, finish, step_ns)


def of_peer(costs: PeerCosts) -> Figures:
    return Figures(costs.admit_us, 0.0, costs.finish_us, None if costs.step_us is None else costs.step_us * 1e3)


def _check_reuse(ours: Costs, floor: FloorCosts, workload: Workload, partial_reuse: bool) -> None:
    """A fast manager that reuses less is not fast. Eviction orders differ a little, hence the margin."""
    least = floor.tokens_reused * 0.99
    if ours.tokens_reused < least:
        raise SystemExit(
            f"{workload.name}: reused {ours.tokens_reused} prompt tokens, the floor {floor.tokens_reused} "
            f"(partial reuse: {partial_reuse}); the comparison would be unfair"
        )


if __name__ == "__main__":
    main()
