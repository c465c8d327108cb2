"""Runs scenarios, each arm in a process of its own, and gathers what came of them."""

import multiprocessing
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from integration.upstream import connectors, loads
from integration.upstream.drafting import DraftServer
from integration.upstream.fallbacks import is_unread
from integration.upstream.full_pool_server import FullPoolServer
from integration.upstream.graph_tables import TablesServer
from integration.upstream.input_server import InputServer
from integration.upstream.native_server import make_server
from integration.upstream.overlaying import overlay
from integration.upstream.pipeline import RankServer, run_ranks
from integration.upstream.pipeline_inputs import RankInputServer
from integration.upstream.prologue_trim import AwaitedSteps, RewrittenSteps, Steps
from integration.upstream.scenarios import ALL, BUDGET, SCENARIOS, STAGING, STAGING_V2, Scenario
from integration.upstream.server import Outcome, Server, upstream
from integration.upstream.v2 import StepServer
from integration.upstream.v2_copies import OwnLaunch, StepCopies
from integration.upstream.v2_newest import NewestV2Server
from integration.upstream.v2_offsets import ByLayerServer, OffsetsServer
from integration.upstream.v2_server import AwaitedV2Server, V2Server
from tests.fixes.loans import watched
from trtllm_kvfix import fixes
from trtllm_kvfix.metrics import counters

FIXES = tuple(fix.id for fix in fixes.ALL)
SERVERS: dict[str, Any] = {
    "serve": Server,
    "draft": DraftServer,
    "inputs": InputServer,
    "lora-tables": TablesServer,
    "native": make_server,
    "full-pool": FullPoolServer,
    "v2": V2Server,
    "v2-awaited": AwaitedV2Server,
    "v2-newest": NewestV2Server,
    "v2-steps": StepServer,
    "v2-offsets": OffsetsServer,
    "v2-by-layer": ByLayerServer,
    "v2-own-launch": OwnLaunch,
    "v2-step-copies": StepCopies,
    "v2-trim": Steps,
    "v2-trim-rewritten": RewrittenSteps,
    "v2-trim-awaited": AwaitedSteps,
}
RANKS: dict[str, type[RankServer]] = {"pp": RankServer, "pp-inputs": RankInputServer}
TIMEOUT_S = 60
ARMS = ("off", "only", "all", "lent")
LISTED, SLOT = re.compile(r"\[[^'\]]+\]"), re.compile(r"(?<![-\d])\d+")  # a list of slots, and a slot; -1 is none


@dataclass
class Result:
    era: str
    scenario: str
    fix: str
    arm: str  # off: upstream alone; only: this fix; all: every fix; lent: the same, with early copies
    result: str  # right, wrong, not-applied, not-run
    remark: str = ""
    hazard: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)
    connector_calls: list[tuple[str, str]] = field(default_factory=list)
    tree: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.era, self.scenario


def choices(scenario: Scenario, arm: str) -> dict[str, str]:
    if arm in ("all", "lent") or scenario.fix == ALL:
        return {}
    return {fix: "auto" if fix == scenario.fix else "off" for fix in FIXES}


def unrun(era: str, scenario: Scenario, arm: str) -> Result:
    hazard = scenario.hazard and era not in scenario.mended
    return Result(era, scenario.name, scenario.fix, arm, "not-run", hazard=hazard)


def run(root: Path, era: str, scenario: Scenario, arm: str, make: Callable[..., Any] | None = None) -> Result:
    """Runs one arm in this process. make: the server, if the kind of the scenario does not determine it."""
    result = unrun(era, scenario, arm)
    manager = "native" if scenario.kind == "native" else "upstream"
    mode = "early_copy" if arm == "lent" else "auto"
    with (
        upstream(root, era) as (tree, device, logger),
        overlay(arm != "off", choices(scenario, arm), mode, manager) as status,
        watched() as loans,
    ):
        try:
            calls = connectors.Calls()
            connector = _connector(tree, scenario, calls)
            server = (make or SERVERS[scenario.kind])(tree, device, scenario.shape, connector)
        except Exception as error:
            result.remark = f"cannot be set up: {type(error).__name__}: {error}"
            result.tree = {"traceback": traceback.format_exc()}
            return result
        scenario.prepare(server)
        outcome = server.serve(list(scenario.arrivals), scenario.cancels)
        outcome.warnings = [text for _, text in logger.said]
        _note_fixes(outcome, status())
        outcome.remarks += asked_again(calls.made) if scenario.asked_once else []
        outcome.remarks += loans.complaints()
        outcome.remarks += of_our_connector(scenario)
        result.calls, result.connector_calls = outcome.calls, calls.made
        result.tree = _described(tree, outcome) | {"methods_of_ours": tree.lacking}
    if is_unread(outcome.died):
        result.remark = f"the excerpts do not reach: {outcome.died}"
        return result
    complaints = scenario.complaints(outcome)
    word = outcome.fixes.get(scenario.fix, "applied") if arm != "off" else "off"
    result.result = "wrong" if complaints else "right"
    result.remark = "; ".join(complaints)[:600]
    if arm == "lent" and loans.made and not complaints:
        result.remark = f"{loans.made} tables were lent"
    if arm != "off" and word != "applied":
        result.remark = f"{scenario.fix} is {word}. {result.remark}".strip()
    return result


def _connector(tree: Any, scenario: Scenario, calls: connectors.Calls) -> Any:
    match scenario.connector:
        case "recorder":
            return connectors.recording(tree, calls)
        case "loading":
            return loads.loading(tree, calls, scenario.offers)
        case "reserving":
            return loads.reserving(tree, calls, scenario.offers)
        case "ours":
            return connectors.ours(tree, scenario.shape)
        case "ours-attention-dp":
            return connectors.ours(tree, scenario.shape, attention_dp=True)
        case _:
            return None


def _note_fixes(outcome: Outcome, status: dict[str, Any]) -> None:
    for fix, entry in status.get("fixes", {}).items():
        outcome.fixes[fix] = entry["word"]
        if entry["faults"]:
            outcome.faults[fix] = entry["first_error"]


def of_our_connector(scenario: Scenario) -> list[str]:
    """It must be able to read what the blocks of a request hold, and to have it computed where a load fails."""
    skipped = counters.offload_requests_skipped.value if scenario.connector == "ours" else 0
    found = [f"the connector left {skipped:g} requests alone"] if skipped else []
    recomputed = counters.offload_recomputed_requests.value
    if recomputed < scenario.recomputed_min:
        found.append(f"{recomputed:g} requests computed what was not loaded, {scenario.recomputed_min} should have")
    return found


def asked_again(calls: list[tuple[str, str]]) -> list[str]:
    """Requests about which a connector was asked, or whose blocks were reported to it, more than once."""
    found = []
    for method in ("get_num_new_matched_tokens", "update_state_after_alloc"):
        about = [words.split(",")[0] for name, words in calls if name == method]
        found += [f"{method} is called {about.count(each)} times about {each}" for each in sorted(set(about))]
    return [each for each in found if " 1 times " not in each]


def _described(tree: Any, outcome: Outcome) -> dict[str, Any]:
    return {
        "real": tree.real,
        "doubled": tree.doubled,
        "supplied": tree.supplied,
        "ours": sorted(tree.provided),
        "shadowed": sorted(tree.shadowed),
        "missing_seams": tree.missing_seams,
        "doubles_called": outcome.doubles_called,
        "waited_for": outcome.settled,
        "v2_runtime": tree.v2_runtime,
        "fixes": outcome.fixes,
        "batches": outcome.batches,
        "warnings": outcome.warnings[:5],
    }


def _child(send: Any, root: Path, era: str, scenario: Scenario, arm: str, make: Callable[..., Any] | None) -> None:
    try:
        ranks = RANKS.get(scenario.kind)
        whole = partial(run, make=make) if ranks is None else partial(run_ranks, ranks, run)
        send.send(asdict(whole(root, era, scenario, arm)))
    except BaseException as error:
        last = traceback.format_exc().strip().splitlines()[-3:]
        send.send({"died": f"{type(error).__name__}: {error}", "traceback": last})
    finally:
        send.close()


def apart(root: Path, era: str, scenario: Scenario, arm: str, make: Callable[..., Any] | None = None) -> Result:
    """One arm in a process of its own: a process holds one tensorrt_llm, and a dead lock must not end the report."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, root, era, scenario, arm, make))
    child.start()
    send.close()
    unknown = unrun(era, scenario, arm)
    try:
        if not receive.poll(TIMEOUT_S):
            child.kill()
            return _told(unknown, "wrong", f"hangs: nothing within {TIMEOUT_S} s")
        answer = receive.recv()
    except EOFError:
        child.join()
        return _told(unknown, "wrong", f"the process ended with {child.exitcode}")
    child.join()
    if "died" in answer:
        return _told(unknown, "not-run", f"{answer['died']} {answer['traceback']}")
    return Result(**answer)


def _told(result: Result, word: str, remark: str) -> Result:
    result.result, result.remark = word, remark
    return result


def run_all(root: Path, era: str, names: Iterable[str] = ()) -> Iterator[Result]:
    torch.set_num_threads(1)
    for scenario in SCENARIOS:
        if era not in scenario.eras or (names and scenario.name not in names):
            continue
        found = {arm: apart(root, era, scenario, arm) for arm in ARMS if has(scenario, arm)}
        _compare_calls(scenario, found)
        yield from found.values()


def has(scenario: Scenario, arm: str) -> bool:
    if arm == "lent":
        return scenario.fix in (STAGING, STAGING_V2) or scenario.kind == "v2"
    return not (scenario.fix == ALL and arm == "only")


def _compare_calls(scenario: Scenario, found: dict[str, Result]) -> None:
    """If no batch is cut, a connector hears the same things in the same order with the overlay as without it."""
    off, on = found["off"], found["all"]
    is_cut = scenario.calls_differ or (scenario.fix == BUDGET and scenario.hazard)
    if (
        scenario.connector in ("", "ours", "ours-attention-dp")
        or is_cut
        or off.result == "not-run"
        or on.result != "right"
    ):
        return
    without, with_us = (heard(each.connector_calls, scenario) for each in (off, on))
    if without != with_us:
        index = next(i for i, (was, now) in enumerate(zip_longest(without, with_us)) if was != now)
        was, now = without[index : index + 1], with_us[index : index + 1]
        on.result, on.remark = "wrong", f"the connector is told something else at call {index}: {now}, not {was}"


def heard(calls: list[tuple[str, str]], scenario: Scenario) -> list[tuple[str, str]]:
    """Which slots are named counts, unless a fix chooses others. How many, and where none is, does in any case."""
    if not scenario.slots_differ:
        return calls
    unnamed = [(method, LISTED.sub(lambda found: SLOT.sub("slot", found[0]), words)) for method, words in calls]
    # Those are requests.
    return [was if was[0] == "get_finished" else now for was, now in zip(calls, unnamed, strict=True)]
