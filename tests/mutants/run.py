"""Plant one mistake at a time in the C++ code and require that its test fails.

Works on a copy of the tree. While a test runs, the next mistake is compiled.
"""

import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.mutants.mutant import Mutant, load_mutants
from tests.mutants.outcomes import (
    NOTICED,
    SKIPPED,
    Outcome,
    commit_now,
    date_now,
    keep_outcomes,
    outcome_of,
)
from tests.mutants.workshop import Workshop, run_test


def try_all(workshop: Workshop, mutants: list[Mutant]) -> list[Outcome]:
    commit, date = commit_now(), date_now()
    workshop.compile({mutant.program for mutant in mutants})
    programs = {mutant.test: mutant.program for mutant in mutants}
    unharmed: dict[str, Future[str]] = {}
    mutated: dict[str, Future[str]] = {}
    with ThreadPoolExecutor(workshop.jobs) as pool:
        for number, (test, program) in enumerate(programs.items()):
            unharmed[test] = pool.submit(run_test, workshop.built(program, f"{program}-{number}"), test)
        for number, mutant in enumerate(sorted(mutants, key=place_in_turn)):
            with_it = workshop.built_with(mutant, f"mutant-{number}")
            mutated[mutant.name] = pool.submit(run_test, with_it, mutant.test)
    return [
        Outcome(commit, date, one.name, one.file, one.test, outcome_of(unharmed[one.test].result(), of_it.result()))
        for one, of_it in ((mutant, mutated[mutant.name]) for mutant in mutants)
    ]


def place_in_turn(mutant: Mutant) -> tuple[bool, str]:
    """Order mistakes by file, because the files that one has changed are compiled again with the next. Headers come
    last, because most of the code includes them."""
    return mutant.file.endswith(".h"), mutant.file


def table_of(outcomes: list[Outcome]) -> Table:
    table = Table("mutant")
    table.add_column("test", overflow="fold")
    table.add_column("with the mistake")
    for one in outcomes:
        colour = "green" if one.outcome in NOTICED else "yellow" if one.outcome == SKIPPED else "bold red"
        table.add_row(one.mutant, one.test, f"[{colour}]{one.outcome}[/]")
    return table


@click.command(help=__doc__)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Parallel compilations, and tests.")
@click.option("--only", default="", help="Only the mutants with this in their name.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write what was found to this CSV file. Rows of mutants that --only leaves out stay.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Build here, and leave the build for the next call. [default: a temporary folder]",
)
def main(jobs: int, only: str, results: Path | None, folder: Path | None) -> None:
    every = load_mutants()
    mutants = [mutant for mutant in every if only in mutant.name]
    if not mutants:
        raise click.UsageError(f"no mutant has '{only}' in its name")
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        outcomes = try_all(Workshop(place, jobs), mutants)
    if results:
        keep_outcomes(results, outcomes, every)
    console = Console()
    console.print(table_of(outcomes))
    noticed = sum(one.outcome in NOTICED for one in outcomes)
    skipped = sum(one.outcome == SKIPPED for one in outcomes)
    console.print(f"{noticed} of {len(mutants)} mutants were noticed, {skipped} need another machine")
    sys.exit(0 if noticed + skipped == len(mutants) else 1)


if __name__ == "__main__":
    main()
