"""The table of hazards as docs/hazards/README.md shows it: each hazard, and where its scenario can be played.

    python -m tests.hazards.pages

prints it; a test compares it with the page.
"""

import sys
from collections.abc import Iterator
from typing import NamedTuple

from trtllm_kvfix.hazards import table
from trtllm_kvfix.hazards.table import GroundName, Hazard
from trtllm_kvfix.tools.selfcheck.steps import SCENARIOS
from trtllm_kvfix.tools.verify.cases import CASES

COMMANDS: dict[GroundName, str] = {"device": "verify", "installed": "selfcheck", "engine": "demo"}


class Remedy(NamedTuple):
    hazard: str
    what: str


NONE = "none"
# What protects from a hazard that no fix of the overlay ends.
INSTEAD = {
    "transfer-order": Remedy("H5", "the [offload connector](../offload.md)"),
    "step-prologue-trim": Remedy("H10", "`staged-offsets-v2`"),
    "ephemeral-sources": Remedy("H13", NONE),
}


def remedy(protection: str) -> str:
    instead = INSTEAD.get(protection)
    return f"`{protection}`" if instead is None else instead.what


def page_of(hazard: Hazard) -> str:
    """The page's name in docs/hazards."""
    return f"{hazard.room.replace('_', '-')}.md"


def shown_by(hazard: Hazard) -> dict[GroundName, list[str]]:
    """The names under which the commands show it, by ground."""
    return {
        "device": list(dict.fromkeys(case.name for case in CASES if case.hazard == hazard.id)),
        "installed": [each.name for each in SCENARIOS if each.fix_id in hazard.symptoms],
        "engine": [hazard.scene.fix] if hazard.scene is not None else [],
    }


def hazards_table() -> str:
    titles = " | ".join(f"`{command}`" for command in COMMANDS.values())
    return "\n".join(
        [
            f"| | what goes wrong | fix | {titles} |",
            "| --- | --- | --- |" + " --- |" * len(COMMANDS),
            *map(_row, table.HAZARDS),
        ]
    )


def _row(hazard: Hazard) -> str:
    fixes = ", ".join(map(remedy, hazard.symptoms))
    return f"| [{hazard.id}]({page_of(hazard)}) | {hazard.what} | {fixes} | {' | '.join(_cells(hazard))} |"


def _cells(hazard: Hazard) -> Iterator[str]:
    for ground, names in shown_by(hazard).items():
        yield ", ".join(f"`{name}`" for name in names) or f"no: {hazard.not_on[ground]}"


if __name__ == "__main__":
    sys.stdout.write(f"{hazards_table()}\n")
