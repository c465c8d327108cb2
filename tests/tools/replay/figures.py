"""Counts of replays that stepped through every iteration and reported every token by itself: `figures.json`.

Written by `python -m tests.tools.replay.figures` at the commit before iterations were passed over, and those with
a store behind the host tier at the commit before replay and connector shared their policy. Those of the native
manager's tier were added when it came. To write it again is to say that the model itself has changed, or the policy, as
when blocks began to go by what their slots would bring.
"""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import AdmissionKind, CacheShape, HostAdmission, HostTierKind, ReplayOutcome

from .shapes import shape, tiny_workload

FIGURES = Path(__file__).parent / "figures.json"


class Case(NamedTuple):
    name: str
    workload: Workload
    shape: CacheShape
    admission: AdmissionKind = AdmissionKind.BATCH

    def run(self) -> ReplayOutcome:
        return Replay(self.workload, self.shape, self.admission).run()


def cases() -> Iterator[Case]:
    """Every way in which iterations differ: tokens each, timestamps, tiers, one that is too small, and admission."""
    tiny = tiny_workload(), shape(max_batch_size=3, max_num_tokens=512, blocks_primary=64)
    small, chat = generate("small", 1), generate("chat", 2)
    for (name, (workload, base)), kind, host, step, ms in product(
        (("tiny", tiny), ("small", small), ("chat", chat)), HostTierKind, (0, 60, 1000), (1, 3, 70), (0, 0.1, 20)
    ):
        changed = {
            "host_tier": kind,
            "host_admission": HostAdmission.ALL,  # the other one came later
            "blocks_host": host,
            "tokens_per_iteration": step,
            "iteration_ms": ms,
            "max_num_tokens": max(base.max_num_tokens, step * base.max_batch_size),
        }
        one = base.model_copy(update=changed)
        yield Case(f"{name}, {host} {kind.value}, {step} tokens, {ms} ms", workload, one)
    yield Case("small, one by one", small.workload, small.shape, AdmissionKind.ONE_BY_ONE)
    for (name, made), host, remote, admission in product(
        (("small", small), ("chat", chat)), (16, 60, 400), (0, 200, 1 << 20), HostAdmission
    ):
        changed = {
            "host_tier": HostTierKind.CONNECTOR,
            "host_admission": admission,
            "blocks_host": host,
            "blocks_remote": remote,
        }
        yield Case(
            f"{name}, {host} {admission.value}, store of {remote}", made.workload, made.shape.model_copy(update=changed)
        )


def figures(outcome: ReplayOutcome) -> list[Any]:
    parts = (outcome.requests, outcome.tokens, outcome.blocks, outcome.moved, outcome.budget)
    told = [part.model_dump(exclude={"remote"}) for part in parts]  # which came later
    counted = [count for part in told for count in part.values() if not isinstance(count, float)]
    remote = [outcome.tokens.remote, outcome.blocks.remote] if outcome.shape.blocks_remote else []
    return [outcome.iterations, outcome.blocks_dropped, *counted, *remote]


if __name__ == "__main__":
    lines = (f"{json.dumps(case.name)}: {json.dumps(figures(case.run()))}" for case in cases())
    FIGURES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
