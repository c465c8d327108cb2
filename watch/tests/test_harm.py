"""Programs that are right do the same under hostrace: output, exit code, signal and files, in each of several runs.

`python -m watch.harm` compares any other program so, on a GPU as well."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hostrace import launch
from hostrace.races import merged, read
from watch.harm.compare import harm, outcome
from watch.tests.conftest import ROOT, compiler

SOURCE = ROOT / "watch/harm/programs.cc"
TIMES = 3
CASES = [
    "blocked_epoll_wait",
    "blocked_fread",
    "blocked_poll",
    "blocked_read",
    "blocked_readv",
    "blocked_recv",
    "blocked_recv_of_a_datagram",
    "blocked_recvmsg",
    "blocked_write",
    "calls_beside_pinned_memory",
    "calls_beside_registered_memory",
    "children_of_every_kind",
    "condition_beside_registered_memory",
    "crash",
    "exit_while_threads_copy",
    "fails_with_what_the_kernel_says",
    "fault_in_memory_that_the_program_protects",
    "fault_that_the_program_mends",
    "files_from_pinned_memory",
    "interrupts_that_touch_neighbours",
    "many_threads_that_wait",
    "mask_that_is_asked_for",
    "mutex_beside_registered_memory",
    "readv_of_many_parts",
    "register_beside_registered_memory",
    "server_with_a_thread_for_signals",
    "sigsuspend_with_everything_else_blocked",
    "started_with_signals_blocked",
    "thread_that_blocked_all_signals_before_cuda",
    "thread_whose_attributes_block_signals",
    "threads_share_pages_and_keep_their_bytes",
    "trap_of_the_program",
]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("harm") / "programs"
    subprocess.run([compiler(), "-std=c++20", "-o", program, SOURCE, "-ldl", "-lpthread"], check=True)
    return program


def harmless(command: list[str], environ: Mapping[str, str], folder: Path) -> None:
    watched = {**environ, **launch.variables(environ, folder, None)}
    pairs = [(outcome(command, environ), outcome(command, watched)) for _ in range(TIMES)]
    harmed = harm((plain for plain, _ in pairs), (seen for _, seen in pairs))
    assert not harmed, f"watched: {harmed[0]}\nplain: {pairs[0][0]}"
    processes = read(folder)
    assert merged(processes) == []
    assert [note for process in processes for note in process.notes if note.startswith("refused")] == []
    assert all(process.numbers["guarded"] for process in processes)


@pytest.mark.parametrize("name", CASES)
def test_a_program_does_the_same_under_hostrace(
    programs: Path, environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    harmless([str(programs), name], environ, tmp_path)
