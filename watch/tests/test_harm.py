"""Programs that are right do the same under hostrace: output, exit code, signal and files, in each of several runs.

`python -m watch.harm` compares any other program so, on a GPU as well."""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hostrace import launch
from hostrace.launch import library
from hostrace.races import Watched, merged, read
from watch.harm.compare import harm, outcome
from watch.harm.emulated import SOURCES
from watch.harm.programs import PROGRAMS
from watch.tests.conftest import ROOT, compiler, tells_raw_calls

SOURCE = ROOT / "watch/harm/programs.cc"
SANDBOXES = SOURCE.with_name("programs_of_sandboxes.cc")
TIMES = 3
TSAN_OPTIONS = "report_bugs=0:atexit_sleep_ms=0"  # by default each process sleeps for a second at its end
PT_TLS = 7
# Traps of WebAssembly are faults that the engine catches.
WASM = "0061736d01000000010401600000030201000503010001070501016600000a0d010b00418080c0002802001a0b"
NODE = f"""
const module = new WebAssembly.Module(Buffer.from("{WASM}", "hex"));
try {{ new WebAssembly.Instance(module).exports.f(); }} catch (error) {{ console.log(error.message); }}
new (require("worker_threads").Worker)("console.log(6 * 7)", {{ eval: true }});
"""
OTHERS = [
    ["java", "-Xshare:off", "-version"],
    ["rustc", "--version", "--verbose"],
    ["git", "--version"],
    ["node", "-e", NODE],
    ["perl", "-e", "$SIG{SEGV} = sub { print qq(mine\n) }; kill SEGV => $$; print sort grep /o/, qw(one two six)"],
    [
        "sqlite3",
        ":memory:",
        "with recursive n(x) as (values (1) union all select x + 1 from n limit 9) select sum(x) from n",
    ],
    ["sh", "-c", "ls / | sort | tail -n 1; kill -SEGV $$"],
]
CASES = [
    "aio_into_pinned_memory",
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
    "calls_that_the_program_answers",
    "calls_that_the_program_answers_by_a_raw_call",
    "calls_that_the_program_answers_by_number",
    "cancelled_before_it_registers",
    "child_of_vfork_that_sets_signals",
    "child_whose_number_is_told_into_pinned_memory",
    "child_without_pinned_memory",
    "children_of_every_kind",
    "children_that_no_handler_of_forks_sees",
    "children_told_into_pinned_memory",
    "code_in_registered_memory",
    "code_in_registered_memory_where_no_file_can_be_opened",
    "commands_in_pinned_memory",
    "condition_beside_registered_memory",
    "connections_into_pinned_memory",
    "contexts_in_pinned_memory",
    "contexts_that_block_signals",
    "contexts_that_unblock_signals",
    "copies_on_a_small_stack",
    "copies_pinned_memory_behind_the_end_of_a_file",
    "crash",
    "datagrams_with_addresses_in_pinned_memory",
    "detaches_pinned_memory",
    "divides_by_pinned_memory",
    "errno_is_left_alone",
    "error_that_is_asked_for_late",
    "exit_while_threads_copy",
    "fails_with_what_the_kernel_says",
    "fault_in_memory_that_the_program_protects",
    "fault_in_the_handler",
    "fault_that_the_program_mends",
    "fault_while_blocked",
    "files_from_pinned_memory",
    "files_moved_by_offsets_in_pinned_memory",
    "functions_that_are_looked_up_in_the_library",
    "handler_on_a_small_stack_that_touches_pinned_memory",
    "handler_that_changes_the_mask_behind_it",
    "handler_that_ends_by_its_own_signal",
    "handler_that_throws",
    "handler_that_touches_pinned_memory",
    "handlers_by_older_functions",
    "handlers_by_other_names_of_sigaction",
    "handlers_that_block_signals_behind_them",
    "handlers_that_interrupt",
    "interrupts_that_call_into_pinned_memory",
    "interrupts_that_touch_neighbours",
    "jumps_out_of_a_handler",
    "jumps_out_of_calls",
    "jumps_out_of_calls_by_a_raw_call",
    "jumps_that_restore_masks",
    "locks_and_advises_by_a_raw_call",
    "locks_and_advises_pinned_memory",
    "many_messages_into_pinned_memory",
    "many_threads_that_wait",
    "maps_over_pinned_memory",
    "maps_pinned_memory_twice",
    "mask_that_is_asked_for",
    "masks_by_a_raw_call",
    "masks_by_number",
    "masks_by_older_functions",
    "masks_of_jumps_in_pinned_memory",
    "messages_into_pinned_memory",
    "moves_pinned_memory",
    "mutex_beside_registered_memory",
    "mutex_that_two_processes_share",
    "names_in_pinned_memory",
    "numbers_of_few_files",
    "numbers_of_its_files",
    "process_that_is_killed_with_a_robust_mutex",
    "protects_pinned_memory",
    "protects_pinned_memory_at_many_places",
    "protects_pinned_memory_by_a_raw_call",
    "protects_pinned_memory_by_key",
    "rare_calls_into_pinned_memory",
    "raw_call_beside_registered_memory",
    "raw_call_into_pinned_memory",
    "raw_call_that_is_interrupted",
    "raw_calls_about_signals",
    "raw_calls_of_every_kind",
    "raw_calls_that_make_children",
    "readv_of_many_parts",
    "register_beside_registered_memory",
    "registered_large_pages",
    "removes_shared_pinned_memory",
    "ring_into_other_memory",
    "ring_into_pinned_memory",
    "ring_that_tells_into_pinned_memory",
    "ring_with_buffers_in_pinned_memory",
    "robust_list_in_pinned_memory",
    "robust_mutexes_in_pinned_memory",
    "sandbox_that_allows_almost_nothing",
    "sandbox_that_allows_little",
    "sandbox_that_asks_the_program",
    "sandbox_that_kills_for_protection",
    "sandbox_that_kills_for_rare_calls",
    "sandbox_that_kills_for_signals",
    "sandbox_that_refuses_protection",
    "sandbox_whose_handler_touches_pinned_memory",
    "sandbox_with_calls_past_the_library",
    "server_with_a_thread_for_signals",
    "signals_of_real_time_in_their_order",
    "signals_that_are_sent_in_the_middle_of_touches",
    "signals_that_are_sent_while_blocked",
    "signals_told_into_pinned_memory",
    "sigpause_with_everything_else_blocked",
    "sigsuspend_with_everything_else_blocked",
    "source_into_which_a_raw_call_reads",
    "source_on_a_stack_that_goes_on",
    "source_that_is_never_written",
    "source_whose_place_becomes_code",
    "stack_for_handlers_in_pinned_memory",
    "stack_for_handlers_that_is_registered",
    "stack_of_a_context_in_pinned_memory",
    "stack_of_a_thread_in_pinned_memory",
    "stack_that_its_thread_registers",
    "started_with_signals_blocked",
    "submitted_into_pinned_memory",
    "thread_of_c11_that_has_signals_blocked",
    "thread_of_the_library_that_touches_and_faults",
    "thread_that_blocked_all_signals_before_cuda",
    "thread_whose_attributes_block_signals",
    "threads_share_pages_and_keep_their_bytes",
    "threads_that_are_cancelled_in_a_touch",
    "timer_that_starts_threads",
    "times_and_limits_in_pinned_memory",
    "trap_of_the_program",
    "trap_without_a_handler",
    "unmaps_pinned_memory",
    "waits_for_atomics",
    "waits_for_barriers",
    "waits_for_conditions",
    "waits_for_futexes",
    "waits_for_futexes_by_a_raw_call",
    "waits_for_locks_of_c11",
    "waits_for_locks_of_readers",
    "waits_for_mutexes",
    "waits_for_once",
    "waits_for_semaphores",
    "waits_for_what_is_registered_meanwhile",
]


def compiled(folder: Path, sources: Sequence[Path], *flags: str, by: str = "") -> Path:
    program = folder / "programs"
    command = [by or compiler(), "-std=c++20", "-w", *flags, "-o", str(program)]
    subprocess.run([*command, *map(str, sources), "-ldl", "-lpthread"], check=True)
    return program


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("harm"), SOURCES, "-DHARM_CUDA_LEAVES_ERRNO")


def seen_in(folder: Path) -> Path:
    made = folder / f"seen-{len(list(folder.glob('seen-*')))}"
    made.mkdir()
    return made


def harmless(
    command: list[str], environ: Mapping[str, str], folder: Path, times: int = TIMES, **more: str
) -> list[Watched]:
    watched = {**environ, **launch.variables(environ, folder, None), **more}
    pairs = [(outcome(command, environ), outcome(command, watched)) for _ in range(times)]
    harmed = harm((plain for plain, _ in pairs), (seen for _, seen in pairs))
    assert not harmed, f"watched: {harmed[0]}\nplain: {pairs[0][0]}"
    processes = read(folder)
    assert [race for race in merged(processes) if race.grade != "possible"] == []
    return processes


WITHOUT_CUDA = ("mask_that_is_asked_for",)  # so no process has a report


@pytest.mark.parametrize("name", CASES)
def test_a_program_does_the_same_under_hostrace(
    programs: Path, environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    if (
        name.startswith(("raw_call_into", "raw_call_that", "raw_calls")) or name.endswith("_raw_call")
    ) and not tells_raw_calls():
        pytest.skip("Linux does not hand over such calls")
    processes = harmless([str(programs), name], environ, tmp_path)
    assert [process.refused for process in processes if process.refused] == []
    assert all(process.numbers["guarded"] or process.left_behind for process in processes)
    assert any(process.numbers["guarded"] for process in processes) is (name not in WITHOUT_CUDA)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_in_python_does_the_same(environ: dict[str, str], tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "watch.harm.programs", name]
    processes = harmless(command, environ, tmp_path, times=2)
    assert any(process.numbers["guarded"] for process in processes)


# They use no CUDA: what stands in front of the C library is all there is of us. Those that are here are run.
@pytest.mark.parametrize("command", [command for command in OTHERS if shutil.which(command[0])], ids=lambda it: it[0])
def test_a_runtime_of_its_own_kind_runs(environ: dict[str, str], tmp_path: Path, command: list[str]) -> None:
    assert harmless(command, environ, tmp_path, times=2) == []


def test_a_program_in_rust_does_the_same(environ: dict[str, str], tmp_path: Path) -> None:
    rustc = shutil.which("rustc") or pytest.skip("no Rust compiler")
    subprocess.run([rustc, "-O", "-o", tmp_path / "programs", SOURCE.with_suffix(".rs")], check=True)
    processes = harmless([str(tmp_path / "programs")], environ, seen_in(tmp_path))
    assert all(process.numbers["guarded"] for process in processes)


def test_a_program_in_go_does_the_same(environ: dict[str, str], tmp_path: Path) -> None:
    """Its runtime sets handlers of signals by calls of its own into the kernel, and makes faults into panics."""
    go = shutil.which("go") or pytest.skip("no Go compiler")
    subprocess.run(
        [go, "build", "-o", tmp_path / "programs", SOURCE.with_suffix(".go")],
        check=True,
        env={**os.environ, "CGO_ENABLED": "1", "GOCACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)},
    )
    for process in harmless([str(tmp_path / "programs")], environ, seen_in(tmp_path)):
        assert process.numbers["guarded"] and not process.numbers["steps"]
        assert any("code of Go" in note for note in process.notes)


def test_no_page_is_protected_where_there_is_code_of_go(environ: dict[str, str], tmp_path: Path) -> None:
    """Its calls into the kernel are made on stacks that have no room for a handler. So nobody sees what it opens in a
    mask by such calls."""
    program = compiled(tmp_path, [SOURCE], "-DHARM_NOTE_OF_GO")
    for name in ("raw_call_into_pinned_memory", "fault_behind_a_mask_that_a_raw_call_opened"):
        for process in harmless([str(program), name], environ, seen_in(tmp_path)):
            assert process.numbers["guarded"] and any("code of Go" in note for note in process.notes)


def test_no_page_is_protected_where_a_library_is_bound_past_us(
    programs: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """Its reads into a protected page would fail, and its touches with everything blocked would end the program."""
    library, source = tmp_path / "libdeep.so", tmp_path / "deep.cc"
    source.write_text("""#include <csignal>
#include <unistd.h>
extern "C" ssize_t its_read(int file, void* to, size_t bytes) { return read(file, to, bytes); }
extern "C" int its_sigmask(int how, const sigset_t* set, sigset_t* old) { return pthread_sigmask(how, set, old); }
""")
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    command = [str(programs), "calls_of_a_library_that_is_bound_deeply"]
    for process in harmless(command, {**environ, "HARM_LIBRARY": str(library)}, seen_in(tmp_path)):
        assert process.numbers["guarded"] and any("RTLD_DEEPBIND" in note for note in process.notes)


@pytest.mark.parametrize(
    ("name", "protected"),
    [
        ("ring_into_other_memory", True),
        ("ring_into_pinned_memory", False),
        ("ring_that_tells_into_pinned_memory", False),
        ("ring_with_buffers_in_pinned_memory", False),
        ("timer_that_starts_threads", False),
        ("aio_into_pinned_memory", False),
        ("submitted_into_pinned_memory", False),
        ("robust_list_in_pinned_memory", False),
    ],
)
def test_no_page_is_protected_where_others_read_pinned_memory_at_any_time(
    programs: Path, environ: dict[str, str], tmp_path: Path, name: str, protected: bool
) -> None:
    for process in harmless([str(programs), name], environ, seen_in(tmp_path), times=1):
        assert any("no page is protected" in note for note in process.notes) != protected


def test_a_program_in_java_does_the_same(environ: dict[str, str], tmp_path: Path) -> None:
    """The virtual machine has a handler of its own for faults, and makes some on purpose."""
    javac = shutil.which("javac") or pytest.skip("no Java compiler")
    headers = Path(javac).resolve().parents[1] / "include"
    subprocess.run([javac, "-d", tmp_path, SOURCE.with_name("Programs.java")], check=True)
    flags = ("-std=c++20", "-shared", "-fPIC", "-I", headers, "-I", headers / "linux")
    shim = SOURCE.with_name("programs_java.cc")
    subprocess.run([compiler(), *flags, "-o", tmp_path / "libprograms.so", shim, "-ldl"], check=True)
    command = ["java", "-cp", str(tmp_path), "Programs"]
    assert harmless(command, environ, seen_in(tmp_path), times=2) == []
    processes = harmless([*command, str(tmp_path / "libprograms.so")], environ, seen_in(tmp_path), times=2)
    assert all(process.numbers["guarded"] for process in processes)


def test_a_program_that_may_write_no_files_does_the_same(
    programs: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """Nothing can be watched then, since there is no report: but what is written all the same would end it."""
    for name in ("files_that_may_not_grow", "files_that_may_no_longer_grow"):
        harmless([str(programs), name], environ, seen_in(tmp_path))


def test_a_program_of_another_user_does_the_same(
    programs: Path, driver: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is written into a folder that the other user did not make."""
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    # Ours may lie below one that is closed to others, as pytest's own are.
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setattr(tempfile, "tempdir", None)
    with tempfile.TemporaryDirectory() as open_to_all:
        place = Path(open_to_all)
        place.chmod(0o755)
        program, cuda, ours = (
            Path(shutil.copy(file, place)) for file in (programs, driver / "libcuda.so.1", library())
        )
        for copied in (program, cuda, ours):
            copied.chmod(0o755)  # whatever our umask is
        monkeypatch.setattr(launch, "library", lambda: ours)
        for name, value in {**environ, "LD_LIBRARY_PATH": str(place), launch.ENV_CUPTI: str(cuda)}.items():
            monkeypatch.setenv(name, value)
        command = [*nobody, str(program), "blocked_recv"]
        folder, watched = launch.prepared(None)
        try:
            plain, seen = outcome(command, os.environ), outcome(command, watched)
            assert plain.status == 0, plain
            assert harm([plain], [seen]) == []
            (process,) = read(folder)
            assert process.numbers["guarded"]
        finally:
            shutil.rmtree(folder)


# A launch script that sets LD_PRELOAD for an allocator, say.
@pytest.mark.parametrize("name", ["blocked_recv", "fault_that_the_program_mends", "server_with_a_thread_for_signals"])
def test_without_the_preload_nothing_is_protected(
    programs: Path, environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    processes = harmless([str(programs), name], environ, tmp_path, LD_PRELOAD="libm.so.6")
    assert len(processes) == TIMES
    assert all("LD_PRELOAD" in (process.refused or "") for process in processes)


@pytest.mark.parametrize(
    ("sanitizer", "sources", "names"),
    [
        ("address", [SOURCE, SANDBOXES], ["blocked_recv", "calls_beside_pinned_memory", "sandbox_that_allows_little"]),
        ("thread", [SOURCE], ["blocked_recv", "calls_beside_pinned_memory"]),
    ],
)
def test_a_program_with_a_sanitizer_runs(
    environ: dict[str, str], tmp_path: Path, sanitizer: str, sources: list[Path], names: list[str]
) -> None:
    """Sanitizers call the kernel past the C library, also where they stand between the kernel and handlers.

    They may keep the signals of faults for themselves."""
    try:
        program = compiled(tmp_path, sources, f"-fsanitize={sanitizer}")
    except subprocess.CalledProcessError:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    quiet = {**environ, "ASAN_OPTIONS": "detect_leaks=0:handle_segv=2", "TSAN_OPTIONS": TSAN_OPTIONS}
    for name in names:
        processes = harmless([str(program), name], quiet, seen_in(tmp_path))
        assert len(processes) == TIMES
        assert all(process.numbers["guarded"] for process in processes)


@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_a_program_is_watched_through_a_sanitizer_of_clang(
    environ: dict[str, str], tmp_path: Path, sanitizer: str
) -> None:
    """clang links the sanitizer into the program, where its functions stand before ours, and pass calls on to them."""
    clang = shutil.which("clang++") or pytest.skip("no clang")
    program = compiled(
        tmp_path, [SOURCE, SOURCE.with_name("programs_of_signals.cc")], f"-fsanitize={sanitizer}", by=clang
    )
    quiet = {**environ, "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": TSAN_OPTIONS}
    for name in ("blocked_recv", "calls_beside_pinned_memory", "handler_that_touches_pinned_memory"):
        processes = harmless([str(program), name], quiet, seen_in(tmp_path))
        assert [process.refused for process in processes if process.refused] == []
        assert all(process.numbers["guarded"] for process in processes)


# It makes calls of its own instead of passing them on to us.
def test_nothing_is_protected_where_calls_go_past_us(environ: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "own_read.cc"
    source.write_text("""#include <sys/syscall.h>
#include <unistd.h>
ssize_t read(int file, void* to, size_t bytes) { return syscall(SYS_read, file, to, bytes); }
""")
    program = compiled(tmp_path, [SOURCE, source], "-rdynamic")
    for process in harmless([str(program), "blocked_read"], environ, seen_in(tmp_path)):
        assert "LD_PRELOAD" in (process.refused or "")


def test_a_handler_takes_no_lock_that_calls_the_kernel_itself(environ: dict[str, str], tmp_path: Path) -> None:
    """ThreadSanitizer's do, and each call would come to the handler again."""
    if not tells_raw_calls():
        pytest.skip("Linux does not hand over such calls")
    program = compiled(tmp_path, [SOURCE], "-DHARM_LOCKS_THAT_CALL", "-rdynamic")
    processes = harmless([str(program), "raw_call_where_locks_call"], environ, seen_in(tmp_path))
    assert all(process.numbers["guarded"] for process in processes)


def test_a_handler_calls_nothing_that_may_wait_for_the_interrupted_code(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """A program or a sanitizer has functions of its own in front of the C library's, with locks in them."""
    if not tells_raw_calls():
        pytest.skip("Linux does not hand over such calls")
    program = compiled(tmp_path, [SOURCE], "-DHARM_CALLS_THAT_LOCK", "-rdynamic")
    processes = harmless([str(program), "raw_calls_where_calls_lock"], environ, seen_in(tmp_path))
    assert all(process.numbers["guarded"] for process in processes)


def test_the_library_needs_little_of_the_static_tls_that_is_left_for_late_comers() -> None:
    """The driver loads it where a launch script replaced LD_PRELOAD, behind libraries that need some, too."""
    image = library().read_bytes()
    table, entry_bytes, entries = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", image, table + at * entry_bytes) for at in range(entries)]
    assert sum(header[6] for header in headers if header[0] == PT_TLS) <= 512
