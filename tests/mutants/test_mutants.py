"""Every mutant can still be planted, and its test exists; nothing is built. tests/mutants/run.py does the rest."""

import re
from pathlib import Path

import pytest

from tests.mutants.run import STAGING_TESTS, WORLDS, Mutant, load_mutants

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = load_mutants()


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_text_stands_exactly_once(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.apply(text) != text


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.test != WORLDS], ids=lambda mutant: mutant.name)
def test_named_test_exists(mutant: Mutant) -> None:
    folder = ROOT / ("cpp/tests/staging" if mutant.program == STAGING_TESTS else "cpp/tests")
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.cc"))
    parts = re.fullmatch(r"(?:(\w+)/)?(\w+)\.(\w+)(?:/(\w+))?", mutant.test)
    assert parts, f"not the name of a test: {mutant.test}"
    instance, suite, name, parameter = parts.groups()
    assert re.search(rf"\bTEST(_F|_P)?\({suite}, {name}\)", sources)
    assert (instance is None) == (parameter is None)
    assert instance is None or f"INSTANTIATE_TEST_SUITE_P({instance}, {suite}," in sources


def test_a_text_that_is_gone_or_stands_twice_is_refused() -> None:
    mutant = Mutant("example", "some.cc", [("wait();", "")], "Suite.Name")
    assert mutant.apply("lock(); wait(); go();") == "lock();  go();"
    for text in ("lock(); go();", "wait(); wait();"):
        with pytest.raises(ValueError, match=r"times in some\.cc, not once: wait"):
            mutant.apply(text)
