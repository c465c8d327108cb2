"""The table: each hazard with its facts and, for each ground, its scenario or the reason why there is none.

`verify`, `selfcheck` and `demo` show a column each; `reproduce` shows the reproducer of each row.
"""

from importlib import import_module

from trtllm_kvfix.hazards.hazard import Hazard, Scenario

# Each has its folder here, and its page in docs/hazards under the same name, with `-` for `_`.
ROOMS = (
    "h1_block_offsets_v1",
    "h2_block_offsets_v2",
    "h3_admission_reuse",
    "h4_eviction_structures",
    "h5_transfer_order",
    "h6_listener_port",
    "h7_other_pinned_buffers",
    "h8_uncomputed_blocks",
    "h9_graph_inputs",
    "h10_step_prologue_trim",
    "h13_ephemeral_sources",
    "h17_partial_copies",
)


def _hazard(room: str) -> Hazard:
    hazard: Hazard = import_module(f"{__package__}.{room}").HAZARD
    return hazard


HAZARDS: tuple[Hazard, ...] = tuple(map(_hazard, ROOMS))


def room_of(hazard: Hazard) -> str:
    return ROOMS[HAZARDS.index(hazard)]


def scenarios() -> tuple[Scenario, ...]:
    """The column of the installed classes."""
    return tuple(
        scenario
        for hazard in HAZARDS
        if "installed" not in hazard.not_on
        for scenario in import_module(f"{__package__}.{room_of(hazard)}.installed").SCENARIOS
    )
