"""Draws the picture of each hazard in docs/hazards/pictures, and that of the packages.

    python -m tools.docs.pictures            # from what was recorded; a test compares the files
    python -m tools.docs.pictures --record   # runs `verify` and `demo` on the simulated device once more

Timelines were measured, so they are drawn from a record: drawing them again gives the same files. H3 is what the block
manager decides, asked for each time. H4, H6, H10, H13 and H17 explain, and nothing in them was measured.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.docs import admission, layers
from tools.docs.svg import LINE, MARGIN, Bars, lane, picture, text, wrapped
from trtllm_kvfix.tools.demo.report import AnswerRead, SceneOutcome
from trtllm_kvfix.tools.verify.report import WIDTH, ArmOutcome, CaseOutcome, Scale, common_scale, drawn, moments

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "hazards" / "pictures"
RECORD = FOLDER / "recorded.json"
CASES = {"h1": "offsets-v1", "h2": "offsets-v2-index", "h5": "store-order", "h9": "graph-inputs"}
SCENES = {"h7": "input-copy-fence", "h8": "computed-blocks"}
ANSWERS_SHOWN = 4


def arm_of(case: CaseOutcome, arm: ArmOutcome, name: str, scale: Scale, y: float) -> tuple[list[str], float]:
    """One arm: its name, its timeline, and what its numbers stand for."""
    verdict = f"{arm.corrupt} of {arm.iterations} corrupt"
    parts = [
        text(MARGIN, y, name, "title"),
        text(MARGIN + WIDTH, y, verdict, "wrong-text" if arm.corrupt else "right-text", "end"),
    ]
    lines, y = wrapped(MARGIN, y + LINE, arm.how, WIDTH)
    drawing = drawn(arm, scale)
    found = re.search(r'viewBox="0 0 \d+ (\d+)"', drawing)
    height = int(found[1]) if found else 0
    parts += [*lines, drawing.replace("<svg ", f'<svg x="{MARGIN}" y="{y:g}" width="{WIDTH}" height="{height}" ', 1)]
    y += height + 8
    for number, (when, what) in enumerate(moments(case, arm), 1):
        parts.append(text(MARGIN, y, f"{number}   {when}"))
        lines, y = wrapped(MARGIN + 140, y, what, WIDTH - 140)
        parts += lines
    return parts, y + LINE


def of_case(case: CaseOutcome) -> str:
    scale = common_scale([case.control, case.fixed])
    control, y = arm_of(case, case.control, "Without the fix", scale, 30)
    fixed, y = arm_of(case, case.fixed, "With it", scale, y + 8)
    note = (
        "Measured on the simulated device: one iteration of each arm. The gate holds the device until the dashed line."
    )
    return picture(
        WIDTH + 2 * MARGIN, y + LINE, f"{case.hazard}: {case.title}", [*control, *fixed, text(MARGIN, y, note, "soft")]
    )


def of_scene(scene: SceneOutcome) -> str:
    pairs = scene.pairs
    wrong = [pair for pair in pairs if not pair[0].right][:ANSWERS_SHOWN]
    y = 30.0
    parts = [text(MARGIN, y, f"Without {scene.fix}: {len(scene.control.wrong)} of {len(pairs)} answers wrong", "title")]
    for without, fixed in wrong:
        y += 1.5 * LINE
        parts.append(text(MARGIN, y, f"{without.user} asks: {without.asked.strip()} …", "soft"))
        for name, answer in (("without", without), ("with it", fixed)):
            y += LINE
            parts += [text(MARGIN + 16, y, name, "soft"), text(MARGIN + 84, y, said(answer), kind_of(answer))]
    note = (
        "From the demo on the simulated device; its engine is small and its model recites what users have handed over."
    )
    y += 2 * LINE
    return picture(WIDTH, y + MARGIN, f"{scene.hazard}: {scene.title}", [*parts, text(MARGIN, y, note, "soft")])


def said(answer: AnswerRead) -> str:
    return "".join(letter if letter.isprintable() else "·" for letter in answer.read) or "(nothing)"


def kind_of(answer: AnswerRead) -> str:
    return f"said {'right' if answer.right else 'wrong'}-text"


def sketch(title: str, heading: str, lanes: Mapping[str, Bars], said: str) -> str:
    """What is explained and was not measured. `title` is what a screen reader says."""
    parts, y = [text(MARGIN, 30, heading, "title")], 46
    for name, bars in lanes.items():
        parts += lane(y, name, bars)
        y += 46
    parts += [text(MARGIN, y + 14, said), text(MARGIN, y + 34, "A sketch; nothing in it was measured.", "soft")]
    return picture(WIDTH, y + 52, title, parts)


def two_threads() -> str:
    """In the order that loses a block."""
    return sketch(
        "H4: two threads change eviction structures",
        "Two threads inside the manager, which locks its tree and not its queues",
        {
            "executor": [(140, 400, "call", "evict: takes block 7"), (620, 860, "overwrite", "writes into block 7")],
            "other thread": [(330, 600, "call", "pin: finds block 7"), (640, 860, "wrong", "reads block 7")],
        },
        "With concurrent-pins the two calls take turns: either the pin keeps block 7, or it does not find it.",
    )


def two_agents() -> str:
    """Who listens where."""
    return sketch(
        "H6: two agents of one host share a listener port",
        "Two servers on one host, whose agents listen on the same default port",
        {
            "server 1": [(140, 860, "right", "agent: metadata listener on the default port")],
            "server 2": [(420, 860, "wrong", "agent: the same port, and the start fails")],
        },
        "With nixl-listener neither listens: what the shared tier exchanges travels another way.",
    )


def torn_launch() -> str:
    """Eight steps, of which the last comes to a new block."""

    def steps(first: tuple[str, str], equal: tuple[str, str]) -> Bars:
        bars = [first, *[equal] * 6, ("right", "new block")]
        return [(140 + 90 * at, 224 + 90 * at, kind, words) for at, (kind, words) in enumerate(bars)]

    return sketch(
        "H10: launches that would mend a torn one are skipped",
        "One launch is torn, and the table stays as it was until the request comes to a new block",
        {
            "with the trim": steps(("wrong", "torn"), ("wrong", "skipped")),
            "without it": steps(("wrong", "torn"), ("right", "launched")),
            "with the fix": steps(("right", "launched"), ("right", "skipped")),
        },
        "With staged-offsets-v2 a launch arrives as it was meant and recorded, so skipping the equal ones is right.",
    )


def ephemeral_source() -> str:
    return sketch(
        "H13: a pageable source is read after the call during which it was to be read",
        "A copy that is to read its source during the call, and a driver that reads it when the stream gets there",
        {
            "host": [(140, 330, "call", "copy: returns"), (350, 560, "overwrite", "writes the source again")],
            "stream": [(140, 620, "pending", "what was queued before"), (640, 860, "wrong", "copy: reads the source")],
        },
        "Right: a pinned snapshot that stays as it is until the copy is over, or a wait before the source is written.",
    )


def lost_match() -> str:
    """Where the blocks are."""
    return sketch(
        "H17: a match in part is overwritten before it is copied",
        "A prompt matches half of block 0, which is on the host, and no block of the GPU is free",
        {
            "books": [(140, 330, "call", "find: block 0"), (350, 560, "call", "make room: move block 5")],
            "host": [(140, 450, "right", "block 0"), (460, 860, "overwrite", "block 5, in the slot of block 0")],
            "GPU": [(140, 560, "pending", "block 5"), (580, 860, "wrong", "the prompt's block: as block 5 left it")],
        },
        "Right: block 0 is held from the time when it is found. With partial-copies it is not reused.",
    )


def all_pictures(recorded: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in CASES:
        yield name, of_case(CaseOutcome.model_validate(recorded[name]))
    for name in SCENES:
        yield name, of_scene(SceneOutcome.model_validate(recorded[name]))
    made: dict[str, Callable[[], str]] = {
        "h3": admission.drawn,
        "h4": two_threads,
        "h6": two_agents,
        "h10": torn_launch,
        "h13": ephemeral_source,
        "h17": lost_match,
    }
    for name, draw in made.items():
        yield name, draw()


def record() -> dict[str, Any]:
    """The first variant of each case, and each scene, as the commands report them."""
    verify = _report("verify", *(word for case in CASES.values() for word in ("--case", case)), "--iterations", "20")
    demo = _report("demo")
    found = {name: next(c for c in verify["cases"] if c["case"] == case) for name, case in CASES.items()}
    found |= {name: next(s for s in demo["scenes"] if s["fix"] == fix) for name, fix in SCENES.items()}
    for each in found.values():  # computed from the rest, and refused as input
        each.pop("verdict", None)
        each.pop("shown", None)
    return found


def _report(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "trtllm_kvfix", *arguments, "--device", "cpu", "--json"]
    report: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return report


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    if "--record" in sys.argv[1:]:
        RECORD.write_text(json.dumps(record(), indent=1) + "\n")
    for name, drawing in all_pictures(json.loads(RECORD.read_text())):
        (FOLDER / f"{name}.svg").write_text(drawing)
    layers.FILE.write_text(layers.drawn())


if __name__ == "__main__":
    main()
