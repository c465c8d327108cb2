"""One planted case in a process of its own: `python -m integration.gpu.watch.run_planted CASE racy|repaired TIMES`.

Prints as JSON how often the outcome was right. The racy arm touches while the device waits at a gate. One repaired
round goes before, in which everything is loaded that a first launch would load.
"""

import json
import sys

from integration.gpu.watch import planted_torch
from integration.gpu.watch.driver import Driver
from integration.gpu.watch.planted import Round
from integration.gpu.watch.planted_graphs import ALL_CASES as CASES

SETTLED_WITHIN_S = 1.0


def run(cuda: Driver, made: Round, repaired: bool) -> bool:
    made.begin()
    cuda.gate.close(cuda.stream)
    made.enqueue()
    if repaired:
        cuda.gate.open()
        cuda("cuCtxSynchronize")
    made.touch()
    cuda.gate.open()
    cuda("cuCtxSynchronize")
    return bool(made.right())


def rounds(name: str, arm: str, times: int) -> int:
    if name in planted_torch.TORCH_CASES:
        once = planted_torch.TORCH_CASES[name]
        once(True)
        return sum(once(arm == "repaired") for _ in range(times))
    cuda = Driver()
    if name.startswith("by_"):  # a call of the C library's waits for the device
        cuda.gate.within_s = min(cuda.gate.within_s, SETTLED_WITHIN_S)
    made = CASES[name](cuda)
    run(cuda, made, True)
    return sum(run(cuda, made, arm == "repaired") for _ in range(times))


def main(name: str, arm: str, times: int) -> None:
    print(json.dumps({"case": name, "arm": arm, "times": times, "right": rounds(name, arm, times)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
