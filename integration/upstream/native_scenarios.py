"""Upstream's loops over our block manager: the memory must hold what the tokens say, whatever ends when.

Without the overlay upstream's own books run, and in S its overlap loop overwrites the offsets of a pending copy (H1).
"""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.ending_scenarios import endings, failures
from integration.upstream.load_scenarios import loading
from integration.upstream.native_crowds import ERAS, WIDE, crowd
from integration.upstream.native_held import KEPT, failing_offloads, held, is_ours, kept_stem, pausing, routed
from integration.upstream.scenarios import ALL, SERVED, Scenario
from integration.upstream.server import Shape
from trtllm_kvfix.metrics import counters


def _crowded(name: str, shape: Shape, seed: int, **more: Any) -> Scenario:
    arrivals, cancels = crowd(seed, longest_answer=20 if shape.policy == "MAX_UTILIZATION" else 7)
    more = {"mended": ("D",), "eras": ERAS, "kind": "native"} | more
    return Scenario(name, ALL, shape.overlap, shape, arrivals, cancels, **more)


def warmed_up(server: Any) -> None:
    """Dummies of a warm-up, and one that pads graphs for as long as the server lives."""
    manager = server.manager
    before = manager.get_num_free_blocks()
    for is_gen in (False, True):
        dummies = manager.add_dummy_requests([901, 902], token_nums=[9, 5], is_gen=is_gen)
        taken = before - manager.get_num_free_blocks()
        if taken != 5:
            raise AssertionError(f"two dummies of 9 and 5 tokens take {taken} blocks")
        for each in dummies:
            manager.free_resources(each)
    if manager.get_num_free_blocks() != before:
        raise AssertionError("dummies leave blocks behind")
    (padding,) = manager.add_dummy_requests([903])
    server.at_end = lambda: manager.free_resources(padding)


def with_our_connector(server: Any) -> None:
    """While everybody waits for a load nobody waits for the device, which goes on by itself; the loop goes round."""
    server.iterations_max = 100_000
    scheduler, schedule = server.executor.scheduler, server.executor.scheduler.schedule_request

    def schedule_request(active: list[Any], inflight: Any) -> Any:
        found = schedule(active, inflight)
        if not found.num_fitting_requests:
            server.device.settle()
        return found

    def at_end() -> None:
        loaded = counters.offload_loaded_blocks.value
        assert loaded or not is_ours(server), "our connector loaded nothing"

    scheduler.schedule_request = schedule_request
    server.at_end = at_end


def ended() -> list[Scenario]:
    """Requests that are cancelled, preempted or failed, as over upstream's own books."""
    return [
        replace(each, name=f"native-{each.name}", eras=tuple(era for era in ERAS if era in each.eras), kind="native")
        for each in endings() + failures()
        # With a capacity scheduler nobody runs out of blocks.
        if each.kind == "serve" and not each.connector and each.name != "fail-blocks"
    ]


def beside() -> list[Scenario]:
    """Somebody uses the manager beside its loop."""
    small = replace(WIDE, blocks=18)
    hosted = replace(small, host_blocks=24)
    packed = replace(small, policy="MAX_UTILIZATION")
    first = Arrival(100, [*KEPT, 7], 1)
    keeping = _crowded("native-retention", replace(small, blocks=44), 9, prepare=kept_stem)
    return [
        # What says events is not among D's excerpts.
        _crowded("native-events", replace(hosted, events=4096), 5, prepare=routed, eras=("S",)),
        _crowded("native-pins", replace(small, blocks=24), 2, prepare=held),
        _crowded("native-pins-host", replace(hosted, blocks=34), 5, prepare=held),
        replace(keeping, arrivals=(first, *keeping.arrivals)),
        _crowded("native-pauses", packed, 10, prepare=pausing),
        _crowded("native-pauses-chunks", replace(packed, chunked=True, chunk_max=8, budget=24), 11, prepare=pausing),
        _crowded("native-pauses-plain-loop", replace(packed, overlap=False), 12, prepare=pausing),
        _crowded("native-pauses-host", replace(packed, host_blocks=20), 13, prepare=pausing),
        _crowded("native-fail-offloads", hosted, 5, prepare=failing_offloads, moves_min=10),
    ]


def connected() -> list[Scenario]:
    """A connector's loads lie in the memory where the model reads them; and so do our own connector's."""
    eras: dict[str, Any] = {"eras": ("S",), "kind": "native", "calls_differ": True}
    v1 = [each for each in loading() if each.kind == "serve" and each.fix == ALL]
    one_pool = replace(WIDE, blocks=18, heads=(1,), layers=2)
    ours: dict[str, Any] = {"connector": "ours", "eras": ("S",), "calls_differ": True}
    return [
        *(replace(each, name=f"native-{each.name}", **eras) for each in v1),
        _crowded("native-ours", one_pool, 14, prepare=with_our_connector, **ours),
        _crowded("native-ours-plain-loop", replace(one_pool, overlap=False), 14, prepare=with_our_connector, **ours),
    ]


def natives() -> list[Scenario]:
    small = replace(WIDE, blocks=18)
    chunks = replace(small, chunked=True, chunk_max=8, budget=16)
    return [
        *ended(),
        *beside(),
        *connected(),
        Scenario("native-served", ALL, True, WIDE, SERVED, mended=("D",), eras=ERAS, kind="native"),
        _crowded("native-crowd", WIDE, 1, reused_min=60),
        _crowded("native-crowd-small", small, 2, moves_min=1),
        _crowded("native-crowd-chunks", chunks, 3),
        _crowded("native-crowd-plain-loop", replace(small, overlap=False), 4),
        _crowded("native-crowd-host", replace(small, host_blocks=24), 5, moves_min=10),
        _crowded("native-crowd-no-reuse", replace(small, reuse=False), 6),
        _crowded("native-crowd-latent", replace(small, latent=True, heads=(1,)), 7),
        # What they ask is not among D's excerpts.
        _crowded("native-dummies", small, 8, prepare=warmed_up, eras=("S",)),
    ]
