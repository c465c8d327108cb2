"""The tables of docs/design.md say how many modules serve one other alone, how many rooms a thing walks through, and
how much there is of each part."""

import re
import sys
from pathlib import Path

import pytest

from tests.shape import WALKS, Walk, figures, found_by_name, importers, serving_one_alone, sizes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design.md"
SHARE_MAX = 0.15
NEAR = 0.1  # of what changes with every commit


def rows() -> dict[str, list[str]]:
    section = PAGE.read_text().partition("\n## Shape\n")[2].partition("\n## ")[0]
    cells = (line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| "))
    return {name: [each.replace(",", "") for each in others] for name, *others in cells}


def test_the_page_shows_the_figures_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    measured, shown = figures(), rows()
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{figure:5} {what}" for what, figure in measured.items()) + "\n")
    assert {name: measured[name] for name in WALKS} == {name: int(shown[name][-1]) for name in WALKS}, (
        "docs/design.md, Shape: `python -m tests.shape` prints what is so"
    )
    for name in measured.keys() - WALKS.keys():
        assert int(shown[name][-1]) == pytest.approx(measured[name], rel=NEAR), f"docs/design.md, Shape: {name}"


def test_the_page_shows_the_sizes_about_as_they_are() -> None:
    shown = rows()
    for part, measured in sizes().items():
        assert [int(each) for each in shown[part][-2:]] == pytest.approx(measured, rel=NEAR), (
            f"docs/design.md, Shape, {part}: `python -m tests.shape` prints what is so"
        )


def test_few_modules_serve_one_other_alone() -> None:
    alone = serving_one_alone()
    assert len(alone) <= SHARE_MAX * len(importers()), (
        f"{len(alone)} of {len(importers())} modules serve one other alone, and {SHARE_MAX:.0%} is the limit: merge "
        f"one into its only user. {', '.join(sorted(alone))}"
    )


def test_what_a_table_finds_by_name_serves_nobody_alone() -> None:
    name = "trtllm_kvfix.hazards.h3_admission_reuse.installed"
    assert name in found_by_name() and len(importers()[name]) == 1
    assert name not in serving_one_alone()
    assert "trtllm_kvfix.overlay.server_end" in serving_one_alone()


def test_a_walk_counts_rooms_of_ours_that_it_enters_and_no_others() -> None:
    walk = Walk()
    with walk.entered():
        re.compile("x").match("x")
    assert walk.rooms == set()
    assert set(WALKS) < set(rows())


def test_importers_are_seen_by_module_and_by_name() -> None:
    found = importers()
    assert "trtllm_kvfix.cli" in found["trtllm_kvfix.usage"]
    assert "trtllm_kvfix.process" in found["trtllm_kvfix.overlay.start_gate"], "imported from its package by name"
    assert "trtllm_kvfix.overlay" not in found, "a face"
    assert "trtllm_kvfix.engine.cache" in found["trtllm_kvfix.staging.mark"], "taken from the face of its package"
