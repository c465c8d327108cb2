"""The mistakes of mutants.yaml, and where the tests are that must notice them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORLDS = "fuzz_worlds"
TEST_FOLDERS = ("cpp/tests", "cpp/tests/staging", "cpp/tests/lanes")


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    edits: list[tuple[str, str]]
    test: str  # a GoogleTest as `--gtest_filter` takes it, or WORLDS

    @property
    def program(self) -> str:
        """The test's file has a program of its own (cmake/tests_apart.cmake)."""
        return WORLDS if self.test == WORLDS else find_test(self.test).stem

    def apply(self, text: str) -> str:
        for old, new in self.edits:
            if (count := text.count(old)) != 1:
                raise ValueError(f"mutant '{self.name}': {count} times in {self.file}, not once: {old}")
            text = text.replace(old, new)
        return text


def load_mutants() -> list[Mutant]:
    listed = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text(encoding="utf-8"))
    return [Mutant(**{**one, "edits": [(old, new) for old, new in one["edits"]]}) for one in listed]


@cache
def test_sources() -> dict[Path, str]:
    paths = [path for folder in TEST_FOLDERS for path in sorted((ROOT / folder).glob("test_*.cc"))]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def find_test(test: str) -> Path:
    parts = re.fullmatch(r"(?:(\w+)/)?(\w+)\.(\w+)(?:/(\w+))?", test)
    if parts is None or (parts[1] is None) != (parts[4] is None):
        raise ValueError(f"not the name of a test: {test}")
    instance, suite, name, _ = parts.groups()
    for path, text in test_sources().items():
        instantiated = instance is None or f"INSTANTIATE_TEST_SUITE_P({instance}, {suite}," in text
        if instantiated and re.search(rf"\bTEST(_F|_P)?\({suite}, {name}\)", text):
            return path
    raise ValueError(f"no file of {', '.join(TEST_FOLDERS)} has the test {test}")
