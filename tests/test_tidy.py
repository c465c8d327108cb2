"""House rules: each holds for every file of the repository, and each is shown to be able to fail."""

import os

import pytest

from tests.layers import ROOT
from tests.tidy_rules import RULES, Rule
from tests.tracked import tracked_files


@pytest.fixture(scope="module")
def findings() -> dict[str, list[list[str]]]:
    """By rule: for each file that it applies to, its complaints. Each file is read once for all rules."""
    found: dict[str, list[list[str]]] = {rule.name: [] for rule in RULES}
    for path in tracked_files():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace")
        for rule in RULES:
            if rule.applies(name):
                found[rule.name].append([f"{name}: {complaint}" for complaint in rule.complaints(text)])
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_holds_in_every_file(rule: Rule, findings: dict[str, list[list[str]]]) -> None:
    by_file = findings[rule.name]
    assert by_file, f"the rule's paths {rule.paths} match no file"
    complaints = [complaint for of_file in by_file for complaint in of_file]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_complains_about_its_broken_sample_only(rule: Rule) -> None:
    assert list(rule.complaints(rule.broken))
    assert not list(rule.complaints(rule.kept))


def test_executables_are_executable() -> None:
    scripts = [path for path in tracked_files() if path.read_bytes().startswith(b"#!")]
    assert scripts
    assert [path.name for path in scripts if not os.access(path, os.X_OK)] == []
