"""Without building: every mutant can still be planted, its test exists, and the kept table is of these mutants."""

from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, WORLDS, Mutant, find_test, load_mutants
from tests.mutants.outcomes import NOTICED, SKIPPED, Outcome, keep_outcomes, outcome_of, read_outcomes

MUTANTS = load_mutants()
RESULTS = Path(__file__).with_name("results.csv")
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert names
    assert len(set(names)) == len(names)


@each_mutant
def test_text_stands_exactly_once(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.apply(text) != text


@each_mutant
def test_named_test_exists(mutant: Mutant) -> None:
    assert mutant.test == WORLDS or find_test(mutant.test).is_file()


@pytest.mark.parametrize("name", ["Pins", "Pins.NoSuchTest", "Nobody/EveryStager.NoRowsShipNothing/V1Snapshot"])
def test_a_test_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        find_test(name)


def test_a_text_that_is_gone_or_stands_twice_is_refused() -> None:
    mutant = Mutant("example", "some.cc", [("wait();", "")], "Suite.Name")
    assert mutant.apply("lock(); wait(); go();") == "lock();  go();"
    for text in ("lock(); go();", "wait(); wait();"):
        with pytest.raises(ValueError, match=r"times in some\.cc, not once: wait"):
            mutant.apply(text)


# ------------------------------------------------------------------------------------------------ the kept table


def test_kept_table_is_of_these_mutants() -> None:
    kept = [(one.mutant, one.file, one.test) for one in read_outcomes(RESULTS)]
    again = "python -m tests.mutants.run --only NAME --results tests/mutants/results.csv"
    assert kept == [(one.name, one.file, one.test) for one in MUTANTS], f"try what has changed: {again}"


def test_kept_table_has_no_mutant_that_nobody_noticed() -> None:
    assert [one.mutant for one in read_outcomes(RESULTS) if one.outcome not in NOTICED | {SKIPPED}] == []


def row(mutant: Mutant, outcome: str) -> Outcome:
    return Outcome("abc1234", "2026-01-01T00:00:00+00:00", mutant.name, mutant.file, mutant.test, outcome)


def test_a_run_of_some_mutants_leaves_the_rows_of_the_others(tmp_path: Path) -> None:
    one, two, three = (Mutant(name, "some.cc", [], "Suite.Name") for name in ("one", "two", "three"))
    path = tmp_path / "results.csv"
    keep_outcomes(path, [row(two, "passed"), row(one, "failed")], [one, two])
    keep_outcomes(path, [row(three, "failed"), row(two, "crashed")], [one, two, three])
    assert read_outcomes(path) == [row(one, "failed"), row(two, "crashed"), row(three, "failed")]
    keep_outcomes(path, [], [three])
    assert read_outcomes(path) == [row(three, "failed")]


@pytest.mark.parametrize(
    ("unharmed", "mutated", "outcome"),
    [
        ("passed", "failed", "failed"),
        ("passed", "passed", "passed"),
        ("failed", "failed", "failed without it"),
        ("not found", "not found", "not found without it"),
        ("skipped", "skipped", "skipped"),
    ],
)
def test_a_test_that_fails_without_the_mistake_has_not_noticed_it(unharmed: str, mutated: str, outcome: str) -> None:
    assert outcome_of(unharmed, mutated) == outcome
