"""One planted case in a process of its own: `python -m integration.gpu.watch.run_planted CASE racy|repaired TIMES`.

Prints as JSON how often the outcome was right. The racy arm touches too early; a delay on the stream sees to that.
"""

import json
import sys

from integration.gpu.watch import planted_torch
from integration.gpu.watch.driver import Driver
from integration.gpu.watch.planted_graphs import ALL_CASES as CASES


def main(name: str, arm: str, times: int) -> None:
    if name in planted_torch.TORCH_CASES:
        right = sum(planted_torch.TORCH_CASES[name](arm == "repaired") for _ in range(times))
        print(json.dumps({"case": name, "arm": arm, "times": times, "right": right}))
        return
    cuda = Driver()
    made = CASES[name](cuda)
    right = 0
    for _ in range(times):
        made.begin()
        cuda.delay()
        made.enqueue()
        if arm == "repaired":
            cuda("cuCtxSynchronize")
        made.touch()
        cuda("cuCtxSynchronize")
        right += made.right()
    print(json.dumps({"case": name, "arm": arm, "times": times, "right": right}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
