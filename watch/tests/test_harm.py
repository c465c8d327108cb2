"""Programs that are right do the same under hostrace: output, exit code, signal and files, in each of several runs.

`python -m watch.harm` compares any other program so, on a GPU as well."""

import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hostrace import launch
from hostrace.launch import library
from hostrace.races import Watched, merged, read
from watch.harm.compare import harm, outcome
from watch.harm.programs import PROGRAMS
from watch.tests.conftest import ROOT, compiler

SOURCE = ROOT / "watch/harm/programs.cc"
TIMES = 3
PT_TLS = 7
OTHERS = [
    ["java", "-Xshare:off", "-version"],
    ["rustc", "--version", "--verbose"],
    ["git", "--version"],
    ["sh", "-c", "ls / | sort | tail -n 1; kill -SEGV $$"],
]
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
    subprocess.run([compiler(), "-std=c++20", "-o", str(program), str(SOURCE), "-ldl", "-lpthread"], check=True)
    return program


def harmless(
    command: list[str], environ: Mapping[str, str], folder: Path, times: int = TIMES, **more: str
) -> list[Watched]:
    watched = {**environ, **launch.variables(environ, folder, None), **more}
    pairs = [(outcome(command, environ), outcome(command, watched)) for _ in range(times)]
    harmed = harm((plain for plain, _ in pairs), (seen for _, seen in pairs))
    assert not harmed, f"watched: {harmed[0]}\nplain: {pairs[0][0]}"
    processes = read(folder)
    assert merged(processes) == []
    return processes


@pytest.mark.parametrize("name", CASES)
def test_a_program_does_the_same_under_hostrace(
    programs: Path, environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    processes = harmless([str(programs), name], environ, tmp_path)
    assert [process.refused for process in processes if process.refused] == []
    assert all(process.numbers["guarded"] for process in processes)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_in_python_does_the_same(environ: dict[str, str], tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "watch.harm.programs", name]
    processes = harmless(command, environ, tmp_path, times=2)
    assert any(process.numbers["guarded"] for process in processes)


# They use no CUDA: what stands in front of the C library is all there is of us. Those that are here are run.
@pytest.mark.parametrize("command", [command for command in OTHERS if shutil.which(command[0])], ids=lambda it: it[0])
def test_a_runtime_of_its_own_kind_runs(environ: dict[str, str], tmp_path: Path, command: list[str]) -> None:
    assert harmless(command, environ, tmp_path, times=2) == []


# A launch script that sets LD_PRELOAD for an allocator, say.
@pytest.mark.parametrize("name", ["blocked_recv", "fault_that_the_program_mends", "server_with_a_thread_for_signals"])
def test_without_the_preload_nothing_is_protected(
    programs: Path, environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    processes = harmless([str(programs), name], environ, tmp_path, LD_PRELOAD="libm.so.6")
    assert len(processes) == TIMES
    assert all("LD_PRELOAD" in (process.refused or "") for process in processes)


def test_a_program_with_address_sanitizer_starts(environ: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "programs"
    command = [compiler(), "-std=c++20", "-fsanitize=address", "-o", str(program), str(SOURCE), "-ldl", "-lpthread"]
    if subprocess.run(command, check=False).returncode != 0:
        pytest.skip("the compiler has no AddressSanitizer")
    (tmp_path / "seen").mkdir()
    processes = harmless(
        [str(program), "blocked_recv"], {**environ, "ASAN_OPTIONS": "detect_leaks=0"}, tmp_path / "seen"
    )
    assert len(processes) == TIMES
    assert all(process.numbers["guarded"] for process in processes)


def test_the_library_needs_little_of_the_static_tls_that_is_left_for_late_comers() -> None:
    """The driver loads it where a launch script replaced LD_PRELOAD, behind libraries that need some, too."""
    image = library().read_bytes()
    table, entry_bytes, entries = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", image, table + at * entry_bytes) for at in range(entries)]
    assert sum(header[6] for header in headers if header[0] == PT_TLS) <= 512
