"""Layers of several windows, and of one that slides, over the native manager.

Every token reads those of its window, in pools of each window and number of heads. Blocks leave their window while
their request lives, and others get them: one that leaves too soon is read with what somebody else has written.
"""

from dataclasses import replace
from typing import Any

from integration.upstream.native_crowded import crowded
from integration.upstream.native_crowds import WIDE
from integration.upstream.native_held import is_ours
from integration.upstream.scenarios import Scenario


def windowed() -> list[Scenario]:
    mixed = replace(WIDE, blocks=24, windows=(64, 16), layers=8)
    three = replace(WIDE, blocks=24, windows=(64, 8, 8, 24), layers=8)
    chunks = replace(mixed, chunked=True, chunk_max=8, budget=16)
    hosted = replace(mixed, host_blocks=24)
    packed = replace(mixed, blocks=18, policy="MAX_UTILIZATION")
    # A window of 8 holds 8 blocks of the 16 that a sequence may have: it looks back, and two chunks are not known yet.
    small = replace(WIDE, blocks=10, blocks_sliding=9, windows=(8,), chunked=True, chunk_max=8, budget=8)
    return [
        _of("native-windows", mixed, 21),
        _of("native-windows-plain-loop", replace(mixed, overlap=False), 22),
        _of("native-windows-chunks", chunks, 23),
        _of("native-windows-host", hosted, 24, moves_min=10),
        _of("native-windows-three", three, 25),
        _of("native-windows-pauses", packed, 26),
        _of("native-windows-no-reuse", replace(mixed, reuse=False), 27),
        _of("native-window-slides", replace(WIDE, blocks=24, windows=(16,)), 28),
        _of("native-window-small", small, 29),
        _of("native-windows-small", replace(small, blocks=24, windows=(64, 8, 4), layers=6), 30),
        _of("native-windows-small-host", replace(small, blocks=24, host_blocks=24, windows=(64, 8)), 31, moves_min=10),
        _of("native-windows-small-pauses", replace(small, blocks=20, windows=(64, 8), policy="MAX_UTILIZATION"), 32),
        _of("native-windows-small-plain-loop", replace(small, blocks=24, windows=(64, 8), overlap=False), 33),
    ]


def _of(name: str, shape: Any, seed: int, **more: Any) -> Scenario:
    """In every loop and era the tests' bound books fail under such a crowd. Upstream's own were not examined."""
    found = crowded(name, shape, seed, prepare=sliding, count=24, longest_answer=24, mended=(), **more)
    return replace(found, hazard=True)


def sliding(server: Any) -> None:
    server.iterations_max = 1000
    if not is_ours(server):
        return
    impl = server.manager.impl
    left: list[int] = []
    refresh = impl.refresh_blocks

    def refresh_blocks() -> None:
        refresh()
        left.extend(
            impl.get_num_front_blocks_removed(each, impl.layout.windows[0].size) for each in impl._requests.live
        )

    def at_end() -> None:
        assert server.engine.positions_left, "nobody came to the end of a window"
        assert any(left), "no block left its window"

    impl.refresh_blocks, server.at_end = refresh_blocks, at_end
