"""The flight recorder: the last decisions of a process, also of one that was killed."""

import errno
import json
import mmap
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests import fresh
from tests.overlay.upstream_double import environment
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.runtime_files import Owner, host_of_numbers, new_file


def test_notes_come_back_in_order_with_their_names() -> None:
    recorder = flight.Recorder()
    recorder.note(flight.BATCH_CUT, 100, 64, 1, 2)
    recorder.note(flight.FAULT, 3, text="token-budget")
    cut, fault = recorder.entries()
    assert {name: cut[name] for name in ("kind", *flight.BATCH_CUT.fields)} == {
        "kind": "batch cut",
        "tokens_before": 100,
        "tokens_after": 64,
        "trimmed": 1,
        "deferred": 2,
    }
    assert (fault["kind"], fault["text"], fault["in_a_row"]) == ("fault", "token-budget", 3)
    assert fault["number"] == 2 and fault["time_ns"] >= cut["time_ns"] and fault["thread"] == threading.get_native_id()


def keep_in(recorder: flight.Recorder, folder: Path) -> Path:
    """As the start of an engine does."""
    with new_file(folder, flight.SUFFIX) as descriptor:
        memory = recorder.mapped(descriptor)
    recorder.move_to(memory)
    return Owner.ours().file(folder, flight.SUFFIX)


def test_the_oldest_make_room_and_a_file_goes_on_where_memory_was(tmp_path: Path) -> None:
    recorder = flight.Recorder()
    for number in range(flight.SLOTS - 1):
        recorder.note(flight.SHIPPED, number)
    file = keep_in(recorder, tmp_path)
    for number in range(10):
        recorder.note(flight.SHIPPED, 1000 + number)
    rows = [entry["rows"] for entry in flight.read(file.read_bytes())]
    assert rows == [*range(9, flight.SLOTS - 1), *range(1000, 1010)]
    assert rows == [entry["rows"] for entry in recorder.entries()]


def test_a_file_that_cannot_take_its_name_leaves_nothing_and_the_notes_stay(tmp_path: Path) -> None:
    recorder = flight.Recorder()
    recorder.note(flight.SHIPPED, 1)
    file = Owner.ours().file(tmp_path, flight.SUFFIX)
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        keep_in(recorder, tmp_path)
    recorder.note(flight.SHIPPED, 2)
    assert [entry["rows"] for entry in recorder.entries()] == [1, 2]
    assert [*tmp_path.iterdir()] == [file]
    assert isinstance(recorder._memory, bytearray)


SECOND_START = """
import os, sys
from pathlib import Path
from tests.metrics.test_flight import keep_in
from trtllm_kvfix.metrics import flight
recorder, folder = flight.recorder(), Path(sys.argv[1])
file = keep_in(recorder, folder)
flight.note(flight.SHIPPED, 1)
give_room = os.posix_fallocate

def note_first(*room):
    flight.note(flight.SHIPPED, 2)  # as the first engine's loop may at any time
    print([entry["rows"] for entry in flight.read(file.read_bytes())])
    give_room(*room)

os.posix_fallocate = note_first
keep_in(recorder, folder)
flight.note(flight.SHIPPED, 3)
print([entry["rows"] for entry in flight.read(file.read_bytes())])
print([entry["rows"] for entry in recorder.entries()], *(each.name == file.name for each in file.parent.iterdir()))
"""


def test_a_second_start_keeps_the_notes_while_others_note(tmp_path: Path) -> None:
    """Upstream starts every engine twice. A note into a file that has become shorter is a bus error."""
    command = [sys.executable, "-c", SECOND_START, str(tmp_path)]
    done = fresh.run(command, env=environment(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[1, 2]", "[1, 2, 3]", "[1, 2, 3] True"]


def test_the_file_has_its_room_before_anything_goes_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a file without room on a full disk is a bus error when it is written to."""
    really, enough = mmap.mmap, []

    def look_first(descriptor: int, size: int) -> mmap.mmap:
        enough.append(os.fstat(descriptor).st_blocks * 512 >= size)  # the unit of stat, whatever the disk's
        return really(descriptor, size)

    monkeypatch.setattr(mmap, "mmap", look_first)
    keep_in(flight.Recorder(), tmp_path)
    assert enough == [True]


def test_on_a_full_disk_the_record_stays_in_memory_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = flight.Recorder()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        keep_in(recorder, tmp_path)
    recorder.note(flight.SHIPPED, 1)
    assert len(recorder.entries()) == 1 and not list(tmp_path.iterdir())


def test_a_link_with_the_records_name_gives_way(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("of another program")
    recorder = flight.Recorder()
    file = Owner.ours().file(tmp_path, flight.SUFFIX)
    for link in (file, tmp_path / f"{file.name}.{threading.get_native_id()}.part"):
        link.symlink_to(elsewhere)
    recorder.note(flight.SHIPPED, 1)
    keep_in(recorder, tmp_path)
    assert len(flight.read(file.read_bytes())) == 1 and not file.is_symlink()
    assert elsewhere.read_text() == "of another program" and file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("bad", [("text",), (2**64,), (1.5,), (None,)])
def test_a_note_that_does_not_fit_harms_nobody(bad: tuple[int, ...]) -> None:
    recorder = flight.Recorder()
    recorder.note(flight.SHIPPED, *bad)
    recorder.note(flight.SHIPPED, 1, 2, 3, 4, 5)
    recorder.note(flight.LOOP_FAILED, text="\udcff" * 50)
    assert [entry["kind"] for entry in recorder.entries()] == ["shipped", "loop failed"]


def test_what_is_no_record_is_refused() -> None:
    for ring in (b"", b"KVFIXFR1", bytes(len(flight.MAGIC) + 1)):
        with pytest.raises(ValueError, match="no flight record"):
            flight.read(ring)


def test_many_threads_note_without_losing_slots() -> None:
    recorder = flight.Recorder()

    def work(begin: int) -> None:
        for number in range(flight.SLOTS // 8):
            recorder.note(flight.SHIPPED, begin + number, text="x" * 24)

    threads = [threading.Thread(target=work, args=(1000 * each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = sorted(entry["rows"] for entry in recorder.entries())
    assert rows == [1000 * each + number for each in range(4) for number in range(flight.SLOTS // 8)]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.metrics.test_flight import keep_in
from trtllm_kvfix.metrics import flight
keep_in(flight.recorder(), Path(sys.argv[1]))
flight.note(flight.SHIPPED, 7, 1)
if os.fork() == 0:
    flight.note(flight.SHIPPED, 8, 1)
    os._exit(0)
os.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_record_outlives_a_kill_and_a_fork_has_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    variables = environment(tmp_path)
    for name in ("12ab.here.flight", "12.flight", ".flight"):  # of other programs
        (folder / name).touch()
    keep_in(flight.Recorder(), folder).rename(folder / f"{os.getpid()}.another-host.flight")
    (folder / f"{os.getpid()}.third-host.flight").write_bytes(flight.MAGIC)
    done = fresh.run([sys.executable, "-c", KILLED, str(folder)], env=variables)
    assert done.returncode == -signal.SIGKILL
    shown = fresh.run([sys.executable, "-m", "trtllm_kvfix", "status", "--dump"], env=variables)
    assert shown.returncode == 0, shown.stderr
    records = {record["host"]: record for record in json.loads(shown.stdout)}
    assert "no flight record" in records["third-host"].pop("error")
    assert records.pop("third-host") == {"pid": os.getpid(), "host": "third-host"}
    assert records.pop("another-host") == {"pid": os.getpid(), "host": "another-host", "runs": None, "entries": []}
    (record,) = records.values()
    assert (record["host"], record["runs"]) == (host_of_numbers(), False)
    assert [(entry["kind"], entry["rows"]) for entry in record["entries"]] == [("shipped", 7)]


def test_every_kind_is_noted_somewhere() -> None:
    """A kind that nothing notes would promise what no dump ever shows."""
    package = Path(flight.__file__).parents[1]
    texts = [path.read_text() for path in package.rglob("*.py") if path.name != "flight.py"]
    names = [name for name, value in vars(flight).items() if isinstance(value, flight.Kind)]
    assert names and [name for name in names if not any(f"flight.{name}" in text for text in texts)] == []
