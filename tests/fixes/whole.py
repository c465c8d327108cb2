"""Every place that a fix has, each with a sentence for who adds one and has forgotten it.

    python -m tests.fixes.whole

prints the sentences; there are none where all fixes are whole. What a place has to say is checked by its own tests.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.fix_ids import BLIND, FIX_IDS, room_of
from trtllm_kvfix.hazards import table
from trtllm_kvfix.overlay.fix import Fix

ROOT = Path(__file__).resolve().parents[2]
ADDING = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Adding a fix\n")[2].partition("\n## ")[0]
FILES = tuple(re.findall(r"^\d\. `([^`]+)`", ADDING, re.MULTILINE))
VARIANT_TABLE = "run `python -m tests.overlay.variant_table`, and copy the table"


def forgotten() -> Iterator[str]:
    """A fix is imported only where its files are there: what else is missing shows once they are."""
    missing = list(_files())
    yield from missing or _places()


def _files() -> Iterator[str]:
    for fix_id in FIX_IDS:
        for file in (each.replace("ROOM", room_of(fix_id)) for each in FILES):
            if "HAZARD" not in file and not (ROOT / file).is_file():
                yield f"{fix_id}: {file} is missing"
    ids = set(map(room_of, FIX_IDS))
    for fix in sorted((ROOT / "trtllm_kvfix" / "fixes").glob("*/fix.py")):
        if fix.parent.name not in ids:
            yield f"trtllm_kvfix/fixes/{fix.parent.name} has no id in trtllm_kvfix/fix_ids.py"


def _places() -> Iterator[str]:
    from trtllm_kvfix.fixes import ALL  # noqa: PLC0415  this imports every fix

    for fix in ALL:
        for complaint in (*_in_hazards(fix), *_in_tests(fix), *_in_pages(fix)):
            yield f"{fix.id}: {complaint}"


def _in_hazards(fix: Fix) -> Iterator[str]:
    rooms = {hazard.id: hazard.room for hazard in table.HAZARDS}
    if fix.hazard not in rooms:
        known = ", ".join(rooms)
        yield f"its hazard is {fix.hazard}, which has no room in trtllm_kvfix/hazards/table.py; known are {known}"
        return
    room = f"trtllm_kvfix/hazards/{rooms[fix.hazard]}"
    if not any(hazard.id == fix.hazard and fix.id in hazard.symptoms for hazard in table.HAZARDS):
        yield f"trtllm_kvfix/hazards/table.py, {fix.hazard}, has no symptom that it ends"
    if not any(scenario.fix_id == fix.id for scenario in table.scenarios()):
        yield f"{room}/installed.py has no scenario of it in SCENARIOS"


def _in_tests(fix: Fix) -> Iterator[str]:
    if sorted(fix.expected) != sorted(VARIANTS):
        yield f"its record expects answers in {sorted(fix.expected)}, and the variants are {sorted(VARIANTS)}"
    tests = (ROOT / "tests" / "fixes" / f"test_{room_of(fix.id)}.py").read_text()
    for name in ("BROKEN", "PLACES"):
        if not re.search(rf"^{name}\b.*=", tests, re.MULTILINE):
            yield f"tests/fixes/test_{room_of(fix.id)}.py has no {name} (tests/fixes/proofs.py)"
    if (fix.counting_replacements is None) is not (fix.id in BLIND):
        yield "it has observers, or a reason in BLIND (trtllm_kvfix/fix_ids.py) why there are none, and not both"


def _in_pages(fix: Fix) -> Iterator[str]:
    support, rollout = ((ROOT / "docs" / name).read_text() for name in ("support.md", "rollout.md"))
    states, _, fallbacks = support.partition("\n## When a fix fails\n")
    if f"\n| `{fix.id}` | {fix.hazard} |" not in states:
        yield f"docs/support.md has no row for it among the fixes: {VARIANT_TABLE}"
    if f"\n| `{fix.id}` |" not in fallbacks.partition("\n## ")[0]:
        yield "docs/support.md, `When a fix fails`, has no row for its fallback"
    if f"| `{fix.id}` |" not in (ROOT / "README.md").read_text():
        yield "README.md has no row for it among the symptoms"
    rows = (ROOT / "docs" / "hazards" / "README.md").read_text()
    if not re.search(rf"^\| \[{fix.hazard}\]\(.*`{fix.id}`", rows, re.MULTILINE):
        yield "docs/hazards/README.md has no row for it: run `python -m tests.hazards.pages`, and copy the table"
    if f"`{fix.id}`" not in rollout.partition("\n## `selfcheck`\n")[2].partition("\n## ")[0]:
        yield "docs/rollout.md, `selfcheck`, has no row for its scenario"
    observed = next(each for each in re.findall(r"```yaml\n(.*?)```", rollout, re.DOTALL) if "observe" in each)
    choice = "off" if fix.counting_replacements is None else "observe"
    found = yaml.safe_load(observed)["kvfix"]["fixes"].get(fix.id)
    if found not in ((False, "off") if choice == "off" else (choice,)):
        yield f"docs/rollout.md, `observe`, has {found} for it in the YAML, and not {choice}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{sentence}\n" for sentence in forgotten())
