"""Slices are verbatim and complete, and what a window cuts in half is left out."""

from pathlib import Path

import tomllib

from integration.upstream.assemble import MANIFEST, UNKNOWN, module_text, parts
from integration.upstream.slices import Slice, cut, of_module

SOURCE = '''import os


class First(Base):
    """Says."""

    limit: int = 3

    def one(self):
        text = """
def not_a_statement():
"""
        return text

    @property
    def two(self):
        return 2

    @two.setter
    def two(self, value):
        self.value = value


def last():
    return os
'''


def named(found: list[Slice]) -> list[str]:
    return [each.name for each in found]


def test_a_whole_file_is_cut_into_statements_heads_and_members() -> None:
    found = list(of_module(SOURCE))
    assert named(found) == ["import os", "First", "First.one", "First.two", "First.two.setter", "last"]
    assert all(each.core in SOURCE for each in found)


def test_what_is_put_together_again_runs_as_it_did() -> None:
    text = module_text(list(of_module(SOURCE)))
    names: dict[str, object] = {"Base": object}
    exec(compile(text, "made", "exec"), names)
    made = names["First"]()  # type: ignore[operator]
    made.two = 5
    assert made.value == 5 and "not_a_statement" in made.one()


def test_a_method_that_the_part_cuts_off_is_left_out() -> None:
    part = SOURCE[: SOURCE.index("        return text")]
    found, open_class = cut(part, starts_file=True, ends_file=False, open_class=None)
    assert named(found) == ["import os", "First"] and open_class == "First"


def test_half_a_property_is_left_out() -> None:
    part = SOURCE[: SOURCE.index("        self.value")]
    found, _ = cut(part, starts_file=True, ends_file=False, open_class=None)
    assert "First.two" not in named(found)


def test_a_part_that_begins_inside_a_class_belongs_to_it() -> None:
    part = SOURCE[SOURCE.index("        return text") :]
    found, open_class = cut(part, starts_file=False, ends_file=True, open_class="First")
    assert named(found) == ["First.two", "First.two.setter", "last"] and open_class is None


def test_the_last_method_of_a_file_is_whole() -> None:
    part = SOURCE[SOURCE.index("    @property") : SOURCE.index("def last")].rstrip() + "\n"
    found, _ = cut(part, starts_file=False, ends_file=True, open_class="First")
    assert named(found)[-1] == "First.two.setter"


def test_windows_that_overlap_are_joined(tmp_path: Path) -> None:
    (tmp_path / "000000.txt").write_text(SOURCE[:100], encoding="utf-8")
    (tmp_path / "000060.txt").write_text(SOURCE[60:200], encoding="utf-8")
    (tmp_path / "000250.txt").write_text(SOURCE[250:], encoding="utf-8")
    assert parts(tmp_path) == [(0, SOURCE[:200]), (250, SOURCE[250:])]


def test_the_manifest_names_and_hashes_and_holds_no_text() -> None:
    files = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["file"]
    assert {era for each in files for era in each["eras"]} == {"A", "S", "B2", "C", "D", "N", "N2", "O", "V2"}
    for each in files:
        assert set(each) <= {"eras", "path", "repository", "commit", "chars", "sha256", "excerpts"}
        assert each["commit"] == UNKNOWN or (len(each["commit"]) >= 12 and each["repository"])
        for name, chars, sha256 in each["excerpts"]:
            assert "\n" not in name and len(name) < 200 and chars > 0 and len(sha256) == 64
