"""One planted case in a process of its own: `python -m watch.gpu.run_planted CASE racy|repaired TIMES`.

With one more number, in so many fresh processes, some at once. Prints as JSON how often the outcome was right. The
racy arm touches while the device waits at a gate. One repaired round goes before, in which everything is loaded that a
first launch would load.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from watch.gpu import planted_torch
from watch.gpu.driver import Driver
from watch.gpu.planted import Round
from watch.gpu.planted_graphs import ALL_CASES as CASES

SETTLED_WITHIN_S = 1.0
FRESH_AT_ONCE = 8


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


def in_fresh_processes(name: str, arm: str, times: int, processes: int) -> int:
    command = [sys.executable, "-m", "watch.gpu.run_planted", name, arm, str(times)]

    def once(_: int) -> int:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return int(json.loads(done.stdout.splitlines()[-1])["right"])

    with ThreadPoolExecutor(FRESH_AT_ONCE) as pool:
        return sum(pool.map(once, range(processes)))


def main(name: str, arm: str, times: int, processes: int = 0) -> None:
    right = in_fresh_processes(name, arm, times, processes) if processes else rounds(name, arm, times)
    print(json.dumps({"case": name, "arm": arm, "times": times * max(processes, 1), "right": right}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
