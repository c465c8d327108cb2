"""One arm of our own hazards, to be run under `watch`:

    python -m integration.gpu.watch.ours_work verify NUMBER control|fixed ITERATIONS
    python -m integration.gpu.watch.ours_work standin NAME unfixed|fixed STEPS

Of `verify` the case with that number in its catalogue; of the stand-in's loop one of STANDINS below. Prints as JSON how
often the outcome was wrong.
"""

import json
import sys
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


def verify(number: int, arm: str, iterations: int) -> int:
    from trtllm_kvfix.native import open_device  # noqa: PLC0415
    from trtllm_kvfix.tools.verify.catalogue import CASES  # noqa: PLC0415
    from trtllm_kvfix.tools.verify.runner import run_side  # noqa: PLC0415

    side = getattr(CASES[number], arm)
    return run_side(open_device("cuda"), side, iterations, 0, lambda: None).corrupt


def standin(name: str, arm: str, steps: int) -> int:
    from integration.gpu import test_overlay as loop  # noqa: PLC0415
    from tests.executor.test_graph_inputs import LORA  # noqa: PLC0415

    given = STANDINS[name]
    llm_args: dict[str, Any] = dict(loop.V2) if name == "offsets-v2" else {"kv_cache_config": loop.HOST_TIER}
    llm_args |= LORA if given.graphs else {}
    with loop.standing_in(given.variant):
        if arm == "unfixed":
            return loop.corruptions(llm_args, steps, graphs=given.graphs)[1]
        with loop.applied(given.fix_id):
            return loop.corruptions(llm_args, steps, graphs=given.graphs)[1]


if __name__ == "__main__":
    what, name, arm, times = sys.argv[1:]
    wrong = verify(int(name), arm, int(times)) if what == "verify" else standin(name, arm, int(times))
    print(json.dumps({"wrong": wrong}), flush=True)
