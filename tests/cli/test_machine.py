"""`doctor` describes the machine."""

import resource
from pathlib import Path

import pytest

from trtllm_kvfix import machine


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\nGCC version: 12.2.0", "580.95.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build", "570.124.06"),
        ("something else", None),
    ],
)
def test_driver_is_read_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, version: str | None
) -> None:
    file = tmp_path / "version"
    file.write_text(text)
    monkeypatch.setattr(machine, "DRIVER_VERSION", file)
    assert machine.driver_version() == version


def test_machine_without_a_driver_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DRIVER_VERSION", tmp_path / "absent")
    assert machine.driver_version() is None


@pytest.mark.parametrize(("soft", "shown"), [(65536, 65536), (resource.RLIM_INFINITY, None)])
def test_limit_of_locked_memory_is_the_one_in_force(
    monkeypatch: pytest.MonkeyPatch, soft: int, shown: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, resource.RLIM_INFINITY))
    assert machine.memory_lock_bytes() == shown
