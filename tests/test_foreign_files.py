"""Somebody else's file can neither hold up nor fill up the process that reads it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import fresh
from trtllm_kvfix.foreign_files import SOURCE_BYTES_MAX, bytes_of, text_of
from trtllm_kvfix.runtime_files import live
from trtllm_kvfix.settings import FILE_BYTES_MAX

TRTLLM_KVFIX = (sys.executable, "-m", "trtllm_kvfix")
ENDLESS_S = 60


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


KINDS: tuple[Callable[[Path], None], ...] = (os.mkfifo, endless, Path.mkdir)


def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return fresh.run([*TRTLLM_KVFIX, *arguments], env={**os.environ, **environ}, limit_s=ENDLESS_S)


@pytest.mark.parametrize("make", KINDS)
def test_only_regular_files_are_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ValueError, match=r"^it is not a regular file$"):
        bytes_of(tmp_path / "file", 10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_more_than_expected_is_read(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("123456789é")
    link.symlink_to(file)
    assert text_of(link, 11) == "123456789é"
    with pytest.raises(ValueError, match="it has more than 10 bytes"):
        text_of(link, 10)


def test_doctor_examines_a_tree_with_files_that_have_no_end(tmp_path: Path) -> None:
    package = tmp_path / "tensorrt_llm"
    (package / "_torch").mkdir(parents=True)
    os.mkfifo(package / "_torch" / "pipe.py")
    os.mkfifo(package / "version.py")
    endless(package / "_torch" / "zero.py")
    for file in (package / "_torch" / "huge.py", tmp_path / "cpp/tensorrt_llm/nanobind/batch_manager/bindings.cpp"):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as opened:
            opened.truncate(SOURCE_BYTES_MAX + 1)
    done = run("doctor", "--source", tmp_path, "--json")
    assert done.returncode == 1, done.stderr
    assert f"it has more than {SOURCE_BYTES_MAX} bytes" in json.dumps(json.loads(done.stdout)["problems"])


def test_a_server_file_that_is_too_long_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("kvfix: {}\n" + "key: value\n" * (FILE_BYTES_MAX // 10))
    done = run("run", "--dry-run", "--", "true", "model", "--config", file)
    assert done.returncode == 2
    assert f"--config is {file}, which cannot be read: it has more than {FILE_BYTES_MAX} bytes" in done.stderr


def test_a_settings_file_without_end_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run("status", TRTLLM_KVFIX_CONFIG=str(tmp_path / "pipe"))
    assert done.returncode == 2
    assert "cannot be read: it is not a regular file" in done.stderr


def test_a_pipe_among_attestations_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.json")
    assert list(live(tmp_path, ".json", 1)) == []
