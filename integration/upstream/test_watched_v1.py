"""The canary beside upstream's own V1 manager and loops: requests end, are cancelled and preempted, and come again."""

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, TypeAlias

import pytest

torch = pytest.importorskip("torch", reason="the rig needs torch, on the CPU")

from integration.upstream.arrivals import Arrival  # noqa: E402
from integration.upstream.native_crowds import crowd  # noqa: E402
from integration.upstream.overlaying import overlay  # noqa: E402
from integration.upstream.processes import alone  # noqa: E402
from integration.upstream.scenarios import prompt  # noqa: E402
from integration.upstream.server import Shape, upstream  # noqa: E402
from integration.upstream.test_upstream import PLACES  # noqa: E402
from integration.upstream.watched_v1 import WatchedServer, watching  # noqa: E402
from tests.canary.blind import blind  # noqa: E402
from trtllm_kvfix.canary.canary import Finding  # noqa: E402

STEPS = int(os.environ.get("TORTURE_STEPS", "300"))
SPEAKS_WITHIN = 50
ROOTS = {era: root for era, root in PLACES if era in ("S", "B2", "D")}
ERAS = pytest.mark.parametrize("era", ROOTS)
TIGHT = Shape(blocks=48, max_batch_size=4, chunked=True, budget=32, chunk_max=16)
pytestmark = pytest.mark.skipif(not ROOTS, reason="KVFIX_UPSTREAM names no trees of upstream's V1 manager")


def preempting(server: WatchedServer) -> None:
    """One of those that generate, in every seventh schedule."""
    draw, count = Random(1), 0
    generates = server.batch_manager.LlmRequestState.GENERATION_IN_PROGRESS

    def pause(ready: list[Any]) -> list[Any]:
        nonlocal count
        count += 1
        found = [each for each in ready if each.state == generates]
        return [draw.choice(found)] if found and count % 7 == 0 else []

    server.executor.scheduler.pause = pause


class Seen(NamedTuple):
    died: str
    corrupt: int
    steps: int
    findings: list[Finding]
    wrong_writes: list[int]
    compared: dict[str, int]
    fault: str | None


Load: TypeAlias = tuple[tuple[Arrival, ...], dict[int, list[int]]]  # who comes, and who is cancelled


def played(era: str, shape: Shape, *off: str, blocks_per_step: int = 8, load: Load | None = None) -> Seen:
    """`off`: fixes that are off."""
    found: Seen = alone(_play, era, shape, off, blocks_per_step, load or crowd(1, STEPS * 6 // 5))
    return found


def _play(era: str, shape: Shape, off: Sequence[str], blocks_per_step: int, load: Load, sending: Any) -> None:
    torch.set_num_threads(1)
    settings: dict[str, Any] = {"canary": "observe", "canary_blocks_per_step": blocks_per_step}
    with (
        upstream(ROOTS[era], era) as (tree, device, _),
        overlay(True, dict.fromkeys(off, "off"), **settings),
    ):
        server = WatchedServer(tree, device, shape)
        server.iterations_max = 20 * STEPS
        preempting(server)
        with watching(server):
            arrivals, cancels = load
            outcome = server.serve(list(arrivals), cancels)
            report = server.report
            engine: Any = server.engine
            sending.send(Seen(
                outcome.died, len(outcome.corrupt), report.steps, report.findings, engine.wrong_writes,
                report.blocks_compared, server.watched.fault,
            ))  # fmt: skip
            os._exit(0)


@ERAS
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "plain"])
def test_it_is_silent_where_all_is_right(era: str, overlap: bool) -> None:
    seen = played(era, replace(TIGHT, overlap=overlap))
    assert (seen.died, seen.corrupt, seen.findings, seen.fault) == ("", 0, [], None)
    assert seen.steps > STEPS and sum(seen.compared.values()) > STEPS and seen.wrong_writes == []
    assert {each for each, n in seen.compared.items() if n > STEPS // 15} >= {"reused", "freed", "live"}


RACY = pytest.mark.parametrize("era", [era for era in ROOTS if era != "D"])  # which stages its table by itself


@RACY
@pytest.mark.parametrize("blocks_per_step", [8, 64])
def test_it_speaks_soon_after_the_first_wrong_write_into_a_complete_block(era: str, blocks_per_step: int) -> None:
    seen = played(era, TIGHT, "staged-offsets-v1", blocks_per_step=blocks_per_step)
    assert seen.wrong_writes and seen.fault is None
    first = seen.findings[0]
    assert first.kind == "changed" and "H1" in first.hazards
    assert 0 < first.wrong_at <= seen.wrong_writes[0] + SPEAKS_WITHIN


@RACY
def test_without_the_comparison_it_is_silent(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    seen = played(era, TIGHT, "staged-offsets-v1")
    assert seen.wrong_writes and [each for each in seen.findings if each.kind == "changed"] == []


@pytest.mark.parametrize("era", [era for era in ROOTS if era == "S"])  # later ones store what has been computed
def test_it_speaks_of_blocks_that_nobody_has_computed(era: str) -> None:
    """Each prompt comes again while the first is in the middle of it."""
    prompts = [prompt(100 * number, 24) for number in range(STEPS // 10)]
    twice = [Arrival(2 * n + late, each, 2, at=4 * n + late) for n, each in enumerate(prompts) for late in (0, 1)]
    seen = played(era, replace(TIGHT, budget=16, chunk_max=8), "computed-blocks", load=(tuple(twice), {}))
    assert seen.findings and {(each.kind, each.hazards) for each in seen.findings} == {("unfilled", ("H8",))}
