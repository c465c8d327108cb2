"""The control file is read by the executor's thread: it can neither hold it up nor end it, nor be somebody else's."""

import errno
import os
import stat
from pathlib import Path

import pytest

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.offload.switches import BYTES_MAX, Switches

ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "control.yaml"


def descriptors() -> list[str]:
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


def state(read: Switches) -> tuple[bool, bool]:
    return read.store, read.load


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither a newline nor a brace"),
        ("\n", "write a mapping"),
        ("{}", "write a mapping"),
        ("load: o", "neither a newline nor a brace"),
        ("load: on\ndrop: 2", "neither a newline nor a brace"),  # of 22
        ("{load: on, drop: 2", "neither a newline nor a brace"),
        ("{load: on, drop: 2\n", "ParserError"),
        ("[" * 4000 + "\n", "more than one mapping or list"),
        ("{" * 4000 + "}", "more than one mapping or list"),
        ("load: !!bool maybe\n", "KeyError"),
        ("drop: !!int ''\n", "IndexError"),
        ("drop: !!timestamp now\n", "AttributeError"),
        ("store: on\n" + "#" * BYTES_MAX + "\n", "more than 4096 bytes"),
        (ALIASES, "more than one mapping or list"),
        ("drop: [1]\n", "more than one mapping or list"),
        ("drop: one\n", "drop is not a whole number"),
        ("load: yes please\n", "load is neither on nor off"),
        ("load: \udcff\n", "decode"),
        ("{store: off, store: on}\n", "names store more than once"),
        ('store: off\n"store": on\n', "names store more than once"),
    ],
    ids=range(20),
)
def test_what_makes_no_sense_or_is_half_written_changes_nothing(
    text: str, why: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = Switches(file)
    file.write_text("{load: off, drop: 2}\n")
    assert read.read()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert not read.read()
    assert state(read) == (True, False)
    assert why in caplog.messages[-1]
    assert len(caplog.messages[-1]) < 500
    file.write_text("{load: off, drop: 2}\n")
    assert not read.read(), "the tier is not emptied again"


def test_what_is_not_named_stays_and_without_the_file_all_is_on(file: Path) -> None:
    read = Switches(file)
    file.write_text("load: off\n")
    assert not read.read()
    file.write_text("store: off\n")
    assert not read.read()
    assert state(read) == (False, False)
    file.unlink()
    assert not read.read()
    assert state(read) == (True, True)


def test_a_pipe_does_not_hold_the_executor_up(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    read = Switches(file)
    os.mkfifo(file)
    assert not read.read()
    assert "not a regular file" in caplog.messages[-1]


@pytest.mark.parametrize(("owner", "mode", "is_taken"), [(0, 0o644, True), (7, 0o600, True), (8, 0o600, False)])
def test_it_is_of_this_user_or_of_root(
    owner: int, mode: int, is_taken: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("load: off\n")
    file.chmod(mode)
    fields = list(file.stat())
    fields[stat.ST_UID] = owner
    read = Switches(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: os.stat_result(fields))
        patch.setattr(os, "geteuid", lambda: 7)
        read.read()
    assert state(read) == (True, not is_taken)


def test_nobody_else_may_write_it(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text("load: off\n")
    file.chmod(0o666)
    read = Switches(file)
    read.read()
    assert state(read) == (True, True)
    assert "mode 666" in caplog.messages[-1]


def test_a_file_that_was_refused_for_its_mode_is_read_once_it_has_the_right_one(file: Path) -> None:
    file.write_text("load: off\n")
    file.chmod(0o666)
    read = Switches(file)
    read.read()
    wait_for_another_ctime(file)
    file.chmod(0o600)
    read.read()
    assert state(read) == (True, False)


def wait_for_another_ctime(file: Path) -> None:
    """A filesystem's clock goes in steps of milliseconds."""
    before, mode = file.stat().st_ctime_ns, file.stat().st_mode
    while file.stat().st_ctime_ns == before:
        file.chmod(mode)


def test_a_file_that_could_not_be_opened_once_is_read_the_next_time(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    file.write_text("load: off\n")
    read = Switches(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for _ in range(3):
            assert not read.read()
    assert [text.partition("] ")[2] for text in caplog.messages] == ["Too many open files"], "it is said once"
    read.read()
    assert state(read) == (True, False)


@pytest.mark.parametrize("how", ["a link to itself", "a folder that is gone", "a folder that is a file"])
def test_a_file_that_cannot_be_looked_at_changes_nothing(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    file = folder / "control.yaml"
    file.write_text("load: off\n")
    read = Switches(file)
    read.read()
    file.unlink()
    if how == "a link to itself":
        file.symlink_to(file)
    else:
        folder.rmdir()
        if how == "a folder that is a file":
            folder.write_text("")
    caplog.clear()
    for _ in range(3):
        assert not read.read()
    assert state(read) == (True, False)
    assert len(caplog.messages) == 1 and "changes nothing" in caplog.messages[0]


def test_a_folder_of_that_name_is_closed_again(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.mkdir()
    read, before = Switches(file), descriptors()
    assert not read.read()
    assert "not a regular file" in caplog.messages[-1]
    assert descriptors() == before


def test_a_folder_that_is_not_there_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"kvfix.offload.control_file is .*missing/control.yaml'"):
        Switches(tmp_path / "missing" / "control.yaml")
