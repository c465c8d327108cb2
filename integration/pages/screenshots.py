"""A page as a small picture with the places of its parts, and how far two of them are apart.

Whole pictures cannot be compared where fonts differ: lines break elsewhere, and everything below moves. A narrow page
in a serif font is further from itself than one that has lost its bars. So a page is compared part by part, each
stretched to the size that it had. Drawings have sizes of their own, whatever the font, and may differ little; columns
of text a little more where the page is wide. Of prose, place and ground count.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from integration.pages.chromium import Chromium, Tab

FOLDER = Path(__file__).parent
REFERENCES = FOLDER / "references"
PLACES = REFERENCES / "places.json"
LANDMARKS = (FOLDER / "landmarks.js").read_text()
SCRIPT = (FOLDER / "screenshots.js").read_text()
SHRINK = 8

PIXELS_OFF_MAX = 3  # of a part's left edge, of a width, of a drawing's height
WIDTH_RATIO_MAX = 1.5  # of prose, some of which is as wide as so many letters
HEIGHT_RATIO_MAX = 2.1  # of a text in another font
# Colours, in the mean, of 255. Measured with two other fonts, and with bars or cells taken away: drawings 1.3 to 3.6
# and 5.8 to 27, columns on a wide page 1.5 to 9.0 and above 10, headings up to 32.
MEAN_MAX = {"drawing": 4.6, "columns": 10.0, "prose": 40.0}
COLUMNS_MEAN_MAX_NARROW = 18.0
NARROW = 800
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Shot(NamedTuple):
    address: str  # of a small picture
    parts: list[dict[str, Any]]


def workbench(chromium: Chromium) -> Tab:
    """An empty page in which pictures are worked on."""
    tab = chromium.open("about:blank", 400)
    tab.run(f"globalThis.shots = {SCRIPT}; null")
    return tab


def taken(chromium: Chromium, bench: Tab, page: Path, width: int, *, is_dark: bool, change: str = "0") -> Shot:
    """The page after a change."""
    tab = chromium.open(page.as_uri(), width, is_dark=is_dark)
    tab.run(f"{change}; {SETTLED}")
    parts: list[dict[str, Any]] = tab.run(LANDMARKS)
    picture = tab.screenshot()
    tab.close()
    small: str = bench.run(f"shots.shrunk({json.dumps(picture)}, {SHRINK})")
    return Shot(small, parts)


def reference(name: str) -> Shot:
    image = base64.b64encode((REFERENCES / f"{name}.webp").read_bytes()).decode()
    return Shot(f"data:image/webp;base64,{image}", json.loads(PLACES.read_text())[name])


def keep(name: str, shot: Shot) -> None:
    REFERENCES.mkdir(exist_ok=True)
    places = json.loads(PLACES.read_text()) if PLACES.exists() else {}
    PLACES.write_text(json.dumps(dict(sorted((places | {name: shot.parts}).items()))) + "\n")
    (REFERENCES / f"{name}.webp").write_bytes(base64.b64decode(shot.address.partition(",")[2]))


def complaints(bench: Tab, expected: Shot, found: Shot) -> list[str]:
    """Names the parts that do not look as they did."""
    names = [[part["name"] for part in shot.parts] for shot in (expected, found)]
    if names[0] != names[1]:
        return [f"the parts are {names[1]}, and were {names[0]}"]
    boxes = [json.dumps([_small(part) for part in shot.parts]) for shot in (expected, found)]
    script = f"shots.differences({json.dumps(expected.address)}, {boxes[0]}, {json.dumps(found.address)}, {boxes[1]})"
    apart: list[float] = bench.run(script)
    is_narrow = max(part["width"] for part in expected.parts) < NARROW
    return [
        f"{was['name']} at {was['y']}: {why}"
        for was, now, mean in zip(expected.parts, found.parts, apart, strict=True)
        for why in (*_of_place(was, now), *_of_colours(was["kind"], mean, is_narrow))
    ]


def _of_place(was: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    if abs(now["x"] - was["x"]) > PIXELS_OFF_MAX:
        yield f"left edge at {now['x']}, was at {was['x']}"
    for side, ratio_max, is_exact in (
        ("width", WIDTH_RATIO_MAX, was["kind"] != "prose"),
        ("height", HEIGHT_RATIO_MAX, was["kind"] == "drawing"),
    ):
        low, high = sorted((now[side], was[side]))
        if high - low > PIXELS_OFF_MAX and (is_exact or high > ratio_max * low):
            yield f"{side} {now[side]}, was {was[side]}"


def _of_colours(kind: str, mean: float, is_narrow: bool) -> Iterator[str]:
    limit = COLUMNS_MEAN_MAX_NARROW if kind == "columns" and is_narrow else MEAN_MAX[kind]
    if mean > limit:
        yield f"colours differ by {mean:.1f}, at most {limit}"


def _small(part: dict[str, Any]) -> dict[str, float]:
    return {key: part[key] / SHRINK for key in ("x", "y", "width", "height")}
