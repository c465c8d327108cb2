"""Ranks of the native manager as MPI processes: whatever time their copies take, they decide alike.

Needs Open MPI and mpi4py (Debian: openmpi-bin; pip: mpi4py).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.mpi.native_rank_facts import ALONE_AT, COMPARED_EVERY, ITERATIONS
from integration.mpi.test_ranks import OPEN_MPI, TIMEOUT_S, pytestmark  # noqa: F401  pytest reads the mark by its name
from tests.overlay.upstream_double import environment
from tests.standin.fixture import STANDIN


def ranks_of(count: int, task: str, folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["mpirun", "-n", str(count), sys.executable, "-m", "integration.mpi.native_rank", task],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment(STANDIN, STANDIN_VARIANT="D", **OPEN_MPI),
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == count
    return found


@pytest.mark.parametrize("count", [2, 4])
def test_books_are_equal_after_every_iteration(count: int, tmp_path: Path) -> None:
    first, *others = ranks_of(count, "equal", tmp_path)
    assert len(first["digests"]) == ITERATIONS
    assert first["left"] == 0 < first["moved"]
    assert first["events"] > 0, "the rank with the event manager shows them"
    for each in others:
        assert each == {**first, "events": 0}


@pytest.mark.parametrize(("count", "task"), [(2, "forget"), (4, "forget"), (2, "poll"), (4, "poll")])
def test_ranks_stop_together_where_one_has_done_something_else(count: int, task: str, tmp_path: Path) -> None:
    found = ranks_of(count, task, tmp_path)
    first = -(-ALONE_AT // COMPARED_EVERY) * COMPARED_EVERY
    (at,) = {each["stopped"] for each in found}
    # Which ticket has not ended shows with the next one that matters.
    assert at == first if task == "forget" else at in (first, first + COMPARED_EVERY)
    assert f"ranks [{count - 1}]" in found[0]["said"]
