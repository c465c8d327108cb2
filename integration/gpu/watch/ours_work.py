"""One arm of our own hazards, to be run under `watch`:

    python -m integration.gpu.watch.ours_work verify NUMBER control|fixed ITERATIONS
    python -m integration.gpu.watch.ours_work standin NAME unfixed|fixed STEPS
    python -m integration.gpu.watch.ours_work engine FIX unfixed|fixed CHATS

Of `verify` the case with that number in its catalogue; of the stand-in's loop one of STANDINS below; of the engine the
demo's scene of that fix. Prints as JSON how often the outcome was wrong, and how many of the stager's early copies were
given up because they were late: such a copy still reads what the host writes next, and nobody uses what it brings.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

REQUESTS = 24


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
    from trtllm_kvfix.tools.verify.cases import CASES, run_side  # noqa: PLC0415

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
    """Serves until so many steps have been held in front of their copies, or of their graph."""
    from tests.executor.test_graph_inputs import LORA, for_graphs  # noqa: PLC0415
    from tests.standin.fixture import upstream  # noqa: PLC0415
    from tests.standin.serving import Server  # noqa: PLC0415
    from trtllm_kvfix.metrics import counters  # noqa: PLC0415

    given = STANDINS[name]
    device = "cuda" if find_spec("torch") is None else "torch"  # ours on the same driver
    tier: dict[str, Any] = {"max_tokens": 192, "host_cache_size": 32 * 64}
    llm_args = {"kv_cache_config": tier | ({"use_kv_cache_manager_v2": True} if name == "offsets-v2" else {})}
    with upstream(given.variant, device):
        import_module("tensorrt_llm._torch.pyexecutor.py_executor_creator")
        with nullcontext() if arm == "unfixed" else applied(given.fix_id):
            server = Server(llm_args | (LORA if given.graphs else {}))

            def serve(number: int) -> None:
                made = server.workload(REQUESTS, seed=number)
                for at, each in enumerate(made):  # no prompt begins as another does
                    tokens = [number, at, *each.input_tokens]
                    made[at] = server.request(number * REQUESTS + at, tokens, each.max_new_tokens)
                server.run(for_graphs(server, made) if given.graphs else made)

            serve(0)  # what is loaded at the first use waits for held streams
            assert server.witness is not None
            server.witness.corruptions.clear()
            with server.stall(replay=given.graphs) as stall:
                number = 1
                while stall.held < steps:
                    serve(number)
                    number += 1
            server.close()
            return len({corruption.step for corruption in server.witness.corruptions}), int(counters.late_copies.value)


def engine(fix: str, arm: str, chats: int) -> tuple[int, int]:
    from trtllm_kvfix.engine.machine import open_machine  # noqa: PLC0415
    from trtllm_kvfix.tools.demo.scenes import SCENES, Session, config_of  # noqa: PLC0415

    (scene,) = (scene for scene in SCENES if scene.fix == fix)
    config = config_of(scene, () if arm == "fixed" else (fix,))
    wrong = late = 0
    for seed in range(chats):
        machine = open_machine("cuda", seed=seed)
        session = Session(machine, config)
        try:
            wrong += sum(not answer.right for answer in session.run())
            stager = getattr(session.engine, "_tables").stager  # noqa: B009
            late += 0 if stager is None else stager.stats().late_copies
        finally:
            session.close()
            machine.close()
    return wrong, late


@contextmanager
def applied(fix_id: str | None) -> Iterator[None]:
    """Applies that fix alone; None applies all that are needed."""
    from trtllm_kvfix.fix_ids import FIX_IDS  # noqa: PLC0415
    from trtllm_kvfix.fixes import ALL  # noqa: PLC0415
    from trtllm_kvfix.overlay.registry import Registry  # noqa: PLC0415
    from trtllm_kvfix.overlay.upstream import Upstream  # noqa: PLC0415
    from trtllm_kvfix.sections import FixChoices, Settings  # noqa: PLC0415

    chosen = FixChoices.model_validate({name: "on" if name == fix_id else "off" for name in FIX_IDS})
    registry = Registry(ALL)
    registry.apply(Settings() if fix_id is None else Settings(fixes=chosen), Upstream(), at_last=True)
    yield
    assert registry.revert() == []


if __name__ == "__main__":
    what, name, arm, times = sys.argv[1:]
    if what == "verify":
        wrong, late = verify(int(name), arm, int(times))
    else:
        wrong, late = {"standin": standin, "engine": engine}[what](name, arm, int(times))
    print(json.dumps({"wrong": wrong, "late": late}), flush=True)
