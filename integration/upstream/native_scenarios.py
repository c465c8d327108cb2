"""Upstream's loops over our block manager: the memory must hold what the tokens say, whatever ends when.

Without the overlay upstream's own books run, and in S its overlap loop overwrites the offsets of a pending copy (H1).
"""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.ending_scenarios import endings, failures
from integration.upstream.native_connected import connected
from integration.upstream.native_crowded import crowded
from integration.upstream.native_crowds import ERAS, WIDE
from integration.upstream.native_held import KEPT, failing_offloads, held, kept_stem, pausing, routed
from integration.upstream.native_windows import windowed
from integration.upstream.scenarios import ALL, SERVED, Scenario


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
    keeping = crowded("native-retention", replace(small, blocks=44), 9, prepare=kept_stem)
    return [
        # The code that reports events is not among D's excerpts.
        crowded("native-events", replace(hosted, events=4096), 5, prepare=routed, eras=("S",)),
        crowded("native-pins", replace(small, blocks=24), 2, prepare=held),
        crowded("native-pins-host", replace(hosted, blocks=34), 5, prepare=held),
        replace(keeping, arrivals=(first, *keeping.arrivals)),
        crowded("native-pauses", packed, 10, prepare=pausing),
        crowded("native-pauses-chunks", replace(packed, chunked=True, chunk_max=8, budget=24), 11, prepare=pausing),
        crowded("native-pauses-plain-loop", replace(packed, overlap=False), 12, prepare=pausing),
        crowded("native-pauses-host", replace(packed, host_blocks=20), 13, prepare=pausing),
        crowded("native-fail-offloads", hosted, 5, prepare=failing_offloads, moves_min=10),
    ]


def natives() -> list[Scenario]:
    small = replace(WIDE, blocks=18)
    chunks = replace(small, chunked=True, chunk_max=8, budget=16)
    return [
        *ended(),
        *beside(),
        *connected(),
        *windowed(),
        Scenario("native-served", ALL, True, WIDE, SERVED, mended=("D",), eras=ERAS, kind="native"),
        crowded("native-crowd", WIDE, 1, reused_min=60),
        crowded("native-crowd-small", small, 2, moves_min=1),
        crowded("native-crowd-chunks", chunks, 3),
        crowded("native-crowd-plain-loop", replace(small, overlap=False), 4),
        crowded("native-crowd-host", replace(small, host_blocks=24), 5, moves_min=10),
        crowded("native-crowd-no-reuse", replace(small, reuse=False), 6),
        crowded("native-crowd-latent", replace(small, latent=True, heads=(1,)), 7),
        # The code of their questions is not among D's excerpts.
        crowded("native-dummies", small, 8, prepare=warmed_up, eras=("S",)),
    ]
