"""Files of running processes: each writer's own draft, in a folder that nobody else can take or redirect."""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests import fresh
from trtllm_kvfix import runtime_files
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.settings import Settings


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp" / f"trtllm-kvfix-{os.getuid()}"


def test_usual_place_is_below_the_temporary_folder(temporary: Path) -> None:
    assert runtime_files.folder_of(Settings()) == temporary
    runtime_files.write(temporary, ".json", {})
    assert runtime_files.folder_of(Settings()) == temporary


def test_tests_write_where_the_users_own_processes_do_not(own_temporary_folder: Path) -> None:
    assert runtime_files.folder_of(Settings()).parent == own_temporary_folder


def nowhere(*_: object) -> str:
    raise FileNotFoundError(2, "No usable temporary directory found")


def homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_where_nothing_can_be_written_the_error_says_so(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container all of whose folders are read-only, or whose user is in no list of users."""
    temporary.symlink_to(temporary.parent)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(SettingsError, match=r"home directory.*kvfix\.runtime_dir names one"):
        runtime_files.folder_of(Settings())
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(SettingsError, match=r"No usable temporary.*kvfix\.runtime_dir names one"):
        runtime_files.folder_of(Settings())


@pytest.mark.parametrize("how", ["link", "file", "writable by all"])
def test_a_place_that_somebody_else_has_taken_is_left_to_them(temporary: Path, tmp_path: Path, how: str) -> None:
    if how == "link":
        (tmp_path / "elsewhere").mkdir()
        temporary.symlink_to(tmp_path / "elsewhere")
    elif how == "file":
        temporary.touch()
    else:
        temporary.mkdir()
        temporary.chmod(0o777)
    ours = runtime_files.folder_of(Settings())
    assert ours == tmp_path / "home" / ".cache" / "trtllm-kvfix" / "run"
    runtime_files.write(ours, ".json", {"format": 1})
    assert not list((tmp_path / "elsewhere").glob("*"))


def test_a_link_is_refused_where_the_setting_names_it(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "run"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KvfixError, match="is a link"):
        runtime_files.write(runtime_files.folder_of(Settings(runtime_dir=str(link))), ".json", {})


def test_two_files_of_one_process_never_hold_each_others_text(tmp_path: Path) -> None:
    """The attestation and the report of the host tier are written by different threads."""
    kinds = (".json", ".offload")

    def write(kind: str) -> None:
        for _ in range(300):
            runtime_files.write(tmp_path, kind, {"kind": kind})

    threads = [threading.Thread(target=write, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for kind in kinds:
            file = runtime_files.Owner.ours().file(tmp_path, kind)
            assert not file.exists() or json.loads(file.read_text()) == {"kind": kind}
    for thread in threads:
        thread.join()
    assert sorted(tmp_path.iterdir()) == [runtime_files.Owner.ours().file(tmp_path, kind) for kind in kinds]


NAMELESS = json.dumps({"format": 1, "host": runtime_files.host_of_numbers()})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"format": 1}', '{"format": 2, "host": "here"}', "\udcff", NAMELESS, "[" * 100_000],
)
def test_files_of_others_are_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "1.json").write_text(text, errors="surrogateescape")
    (tmp_path / "2.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "3.json").mkdir()
    ours = runtime_files.signature() | {"format": 1}
    runtime_files.write(tmp_path, ".json", ours)
    assert list(runtime_files.live(tmp_path, ".json", 1)) == [ours]
    assert (tmp_path / "1.json").exists()


def test_a_folder_that_cannot_be_read_is_refused_and_one_that_is_not_there_is_not(tmp_path: Path) -> None:
    runtime_files.refuse_unreadable(tmp_path / "absent")
    runtime_files.refuse_unreadable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"file', which cannot be read: Not a directory; kvfix.runtime_dir names"):
        runtime_files.refuse_unreadable(tmp_path / "file")


def test_a_folder_that_others_may_write_in_is_refused(tmp_path: Path) -> None:
    """The kubelet makes an emptyDir in this way. No server writes there, so nothing would seem to run."""
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match=r"others may write in '.*', so servers refuse it"):
        runtime_files.refuse_unreadable(tmp_path)


def test_a_reader_who_may_not_remove_what_is_old_still_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may run as another user, whose folder lets others read."""
    ours = runtime_files.signature() | {"format": 1}
    (tmp_path / "1.json").write_text(json.dumps(ours | {"process_start": 1}))
    runtime_files.write(tmp_path, ".json", ours)

    def unlink(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        assert list(runtime_files.live(tmp_path, ".json", 1)) == [ours]


PID_MAX = 2**22  # the largest that Linux gives


def ended_file(folder: Path, number: int, host: str = "") -> Path:
    """A file of a process that does not run; a larger number means a later one."""
    file = runtime_files.Owner(PID_MAX + number, host or runtime_files.host_of_numbers()).file(folder, ".flight")
    file.touch()
    os.utime(file, (number, number))
    return file


def test_files_of_ended_processes_are_kept_up_to_a_number(tmp_path: Path) -> None:
    ended = [ended_file(tmp_path, number) for number in range(1, 6)]
    ours = runtime_files.Owner.ours().file(tmp_path, ".flight")
    ours.touch()
    (tmp_path / f"{PID_MAX + 1}.flight").touch()  # of another program
    runtime_files.keep_newest_of_ended(tmp_path, ".flight", 2)
    assert {*tmp_path.iterdir()} == {*ended[-2:], ours, tmp_path / f"{PID_MAX + 1}.flight"}


def test_files_of_another_host_stay_and_only_that_host_knows_whether_their_process_runs(tmp_path: Path) -> None:
    """In a shared folder, a process of another host has a number that says nothing here."""
    theirs = [ended_file(tmp_path, number, host="another.host") for number in range(1, 6)]
    runtime_files.keep_newest_of_ended(tmp_path, ".flight", 2)
    assert sorted(tmp_path.iterdir()) == theirs
    owners = [runtime_files.Owner.of(file, ".flight") for file in theirs]
    assert {(each.host, each.runs) for each in owners if each} == {("another.host", None)}


def test_ranks_that_remove_old_files_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [ended_file(tmp_path, number) for number in range(1, 6)]
    really = runtime_files.process_start

    def after_another_rank(pid: int) -> int | None:
        """The other rank's whole call comes between our look at the folder and our look at its files."""
        with monkeypatch.context() as patched:
            patched.setattr(runtime_files, "process_start", really)
            runtime_files.keep_newest_of_ended(tmp_path, ".flight", 2)
        return really(pid)

    monkeypatch.setattr(runtime_files, "process_start", after_another_rank)
    runtime_files.keep_newest_of_ended(tmp_path, ".flight", 2)
    assert sorted(tmp_path.iterdir()) == ended[-2:]


def test_a_file_is_private_and_no_link_is_followed(tmp_path: Path) -> None:
    """Another user may have put a link where the file, or its draft, will be."""
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    file = runtime_files.Owner.ours().file(folder, ".json")
    for link in (file, folder / f"{file.name}.{threading.get_native_id()}.part"):
        link.symlink_to(victim)
    assert runtime_files.write(folder, ".json", {"secret": 1}) == file
    assert victim.read_text() == "theirs" and not file.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_write_that_fails_leaves_the_file_before_it_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_files.write(tmp_path, ".json", {"turn": 1})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            runtime_files.write(tmp_path, ".json", {"turn": 2})
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == {"turn": 1}


def test_containers_of_one_host_name_have_numbers_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host's network a container has the host's name, and may have the same number as another's process."""
    ours = runtime_files.write(tmp_path, ".json", runtime_files.signature() | {"format": 1})
    monkeypatch.setattr(runtime_files, "host_of_numbers", lambda: "node7-beef")
    theirs = runtime_files.write(tmp_path, ".json", runtime_files.signature() | {"format": 1})
    assert ours != theirs and {*tmp_path.iterdir()} == {ours, theirs}
    (entry,) = runtime_files.live(tmp_path, ".json", 1)
    assert entry["host"] == "node7-beef" and ours.exists()


NAMED = """
import ctypes, os, sys
from trtllm_kvfix.runtime_files import process_start
before = process_start(os.getpid())
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)  # PR_SET_NAME
print(before == process_start(os.getpid()) is not None)
"""


@pytest.mark.parametrize("name", ["服务器推理".encode()[:14], b"caf\xe9", b"a) S 1 (b"])
def test_a_process_may_have_any_name(name: bytes) -> None:
    """The kernel cuts the name of a script after 15 bytes, in the middle of a letter too."""
    ran = fresh.run([sys.executable, "-c", NAMED, name.hex()])
    assert ran.stdout == "True\n", ran.stderr
