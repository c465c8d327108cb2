"""The table of docs/design.md says how many modules serve one other alone, and how many rooms a thing walks through."""

import re
import sys
from pathlib import Path

import pytest

from tests.shape import WALKS, Walk, figures, importers

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design.md"


def shown() -> dict[str, int]:
    section = PAGE.read_text().partition("\n## Shape\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| [\d-]+ \| (\d+) \|", section, re.MULTILINE)
    return {name: int(now) for name, now in rows}


def test_the_page_shows_the_figures_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    measured = figures()
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{figure:5} {what}" for what, figure in measured.items()) + "\n")
    assert shown() == measured, "docs/design.md, Shape: `python -m tests.shape` prints what is so"


def test_a_walk_counts_rooms_of_ours_that_it_enters_and_no_others() -> None:
    walk = Walk()
    with walk.entered():
        re.compile("x").match("x")
    assert walk.rooms == set()
    assert set(WALKS) < set(shown())


def test_importers_are_seen_by_module_and_by_name() -> None:
    found = importers()
    assert "trtllm_kvfix.cli" in found["trtllm_kvfix.usage"]
    assert "trtllm_kvfix.process" in found["trtllm_kvfix.overlay.start_gate"], "imported from its package by name"
    assert "trtllm_kvfix.overlay" not in found, "a face"
    assert "trtllm_kvfix.engine.cache" in found["trtllm_kvfix.staging.mark"], "taken from the face of its package"
