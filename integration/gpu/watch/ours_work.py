"""One arm of our own hazards, to be run under `watch`:

    python -m integration.gpu.watch.ours_work verify NUMBER control|fixed ITERATIONS
    python -m integration.gpu.watch.ours_work standin NAME unfixed|fixed STEPS

Of `verify` the case with that number in its catalogue; of the stand-in's loop one of STANDINS below. Prints as JSON how
often the outcome was wrong, and how many of the stager's early copies were given up because they were late: such a copy
still reads what the host writes next, and nobody uses what it brings.
"""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple


class StandIn(NamedTuple):
    hazard: str
    variant: str
    fix_id: str | None  # None: all that are needed
    graphs: bool = False


STANDINS = {
    "offsets-v1": StandIn("H1", "A", None),
    "offsets-v2": StandIn("H2", "B", None),
    "inputs": StandIn("H7", "A", "input-copy-fence"),
    "graph-inputs": StandIn("H9", "D", "graph-inputs", graphs=True),
}


def verify(number: int, arm: str, iterations: int) -> tuple[int, int]:
    from trtllm_kvfix.native import Device, open_device  # noqa: PLC0415
    from trtllm_kvfix.tools.verify.catalogue import CASES  # noqa: PLC0415
    from trtllm_kvfix.tools.verify.runner import run_side  # noqa: PLC0415

    late: list[int] = []
    side = getattr(CASES[number], arm)

    def build(device: Device, seed: int) -> Any:
        made = side.build(device, seed)
        close: Callable[[], None] = made.close

        def closing() -> None:
            stager = getattr(getattr(made, "shipper", None), "_stager", None)
            late.append(0 if stager is None else stager.stats().late_copies)
            close()

        made.close = closing
        return made

    return run_side(open_device("cuda"), replace(side, build=build), iterations, 0, lambda: None).corrupt, sum(late)


def standin(name: str, arm: str, steps: int) -> tuple[int, int]:
    from integration.gpu import test_overlay as loop  # noqa: PLC0415
    from tests.executor.test_graph_inputs import LORA  # noqa: PLC0415
    from trtllm_kvfix.metrics import counters  # noqa: PLC0415

    given = STANDINS[name]
    llm_args: dict[str, Any] = dict(loop.V2) if name == "offsets-v2" else {"kv_cache_config": loop.HOST_TIER}
    llm_args |= LORA if given.graphs else {}
    with loop.standing_in(given.variant), nullcontext() if arm == "unfixed" else loop.applied(given.fix_id):
        return loop.corruptions(llm_args, steps, graphs=given.graphs)[1], int(counters.late_copies.value)


if __name__ == "__main__":
    what, name, arm, times = sys.argv[1:]
    wrong, late = verify(int(name), arm, int(times)) if what == "verify" else standin(name, arm, int(times))
    print(json.dumps({"wrong": wrong, "late": late}), flush=True)
