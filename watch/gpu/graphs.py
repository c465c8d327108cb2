"""Measures what a CUDA graph costs under hostrace, and which part of it is CUPTI's own: `python -m watch.gpu.graphs
LAYERS_SO RESULTS.csv [--rounds N]`.

Beside plain and watched processes run some into which the driver loads a library that does nothing, or loads CUPTI, or
subscribes to it (layers.cc): asking for no call, for launches of kernels alone, for those of graphs alone, for all but
launches of kernels, and for all that hostrace asks for.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median

from watch.gpu.cost import arguments, arms, clean, taken, write_rows
from watch.gpu.cost_work import GRAPH_MEASURES, NODES_OF_STEP

STEP = "graph_step"
LIMIT_STEP = 1.03


def main() -> int:
    given = arguments(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = arms(given.layers, folder)
        of_arms = {
            "plain": known["plain"],
            "injected": {**known["callback"], "HOSTRACE_LAYER": "injected"},
            "loaded": {**known["callback"], "HOSTRACE_LAYER": "loaded"},
            "subscribed": {**known["callback"], "HOSTRACE_LAYER": "subscribed"},
            "callback cuLaunch": {**known["callback"], "HOSTRACE_CALLS": "cuLaunch"},
            "callback cuGraphLaunch": {**known["callback"], "HOSTRACE_CALLS": "cuGraphLaunch"},
            "callback !cuLaunch": {**known["callback"], "HOSTRACE_CALLS": "!cuLaunch"},
            "callback": known["callback"],
            "watched": known["watched"],
        }
        measures = [each for each in GRAPH_MEASURES if given.only in each]
        step = (STEP, NODES_OF_STEP) if given.only in STEP else None
        figures = taken(given.layers, given.rounds, of_arms, measures, step)
        clean(folder)
    write_rows(given.results, figures, given.rounds)
    of = {key: median(values) for key, values in figures.items()}
    for arm, measure, figure in of:
        if figure == "us":
            parts = ", ".join(f"{part} {of[arm, measure, part]:,.2f}" for part in ("us", "launch_us", "wait_us"))
            print(f"{measure}, {arm}: {parts}")
    bad = step is not None and of["watched", STEP, "us"] > LIMIT_STEP * of["plain", STEP, "us"]
    print(f"a step of {NODES_OF_STEP} nodes may take {LIMIT_STEP} times as long{'  TOO MUCH' if bad else ''}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
