"""A wrong configuration is refused at the start, by the name of the setting. Without a remote tier nothing of it is
imported."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.offload.remote import worker
from trtllm_kvfix.offload.remote.keys import parts_of
from trtllm_kvfix.offload_section import OffloadSettings, RemoteSettings
from trtllm_kvfix.settings import load

PREFIX = "TRTLLM_KVFIX_OFFLOAD_REMOTE_"
DIGEST = "ab" * 32


def remote(**settings: Any) -> OffloadSettings:
    return OffloadSettings.model_validate({"remote": {"kind": "mooncake", "master": "h:1"} | settings})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KIND", "redis", "mooncake"), ("MASTER", "10.0.0.5", "such as 10.0.0.5:50051"), ("MASTER", "h:0", "such as"),
        ("MASTER", "h:99999", "such as"), ("PROTOCOL", "udp", "tcp"), ("SEGMENT_BYTES", "-1GiB", "GiB"),
        ("MASTER", "http://h:1", "such as"), ("MASTER", "a b:1", "such as"), ("MASTER", "' h:1'", "such as"),
        ("MASTER", "::1:5", "such as"), ("MASTER", "h:٣", "such as"), ("MASTER", "h/../:1", "such as"),
        ("HOST", "' '", "such as"), ("HOST", "10.0.0.7/8", "such as"), ("MODEL", "' '", "these weights alone"),
        ("MIN_REUSE_BLOCKS", "0", "1"), ("LOOKUP_WAIT_MS", "5000", "1000"), ("TIMEOUT_S", "0", "0"),
    ],
)  # fmt: skip
def test_bad_values_are_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}{name}.*{said}"):
        load(environ={PREFIX + name: value})


@pytest.mark.parametrize("master", ["h:1", "10.0.0.5:50051", "[::1]:50051", "[fe80::1%eth0]:65535", "node-7.rack_1:1"])
def test_names_and_addresses_are_taken(master: str) -> None:
    assert load(environ={PREFIX + "MASTER": master}).offload.remote.master == master


def test_it_is_a_section_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        'kvfix: {offload: {host_bytes: 1GiB, remote: {kind: mooncake, master: "10.0.0.5:50051", protocol: tcp, '
        "segment_bytes: 20GiB, min_reuse_blocks: 4}}}\n"
    )
    settings = load(file, environ={}).offload.remote
    assert (settings.master, settings.segment_bytes, settings.min_reuse_blocks) == ("10.0.0.5:50051", 20 << 30, 4)


def test_a_master_must_be_named() -> None:
    with pytest.raises(SettingsError, match=r"kvfix.offload.remote.master is not set"):
        worker.require_store(remote(master=None))


def test_without_the_client_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'trtllm-kvfix\[mooncake\]'"):
        worker.require_store(remote())
    monkeypatch.setattr(worker, "find_spec", lambda _: object())
    worker.require_store(remote())


def test_nothing_is_imported_without_it() -> None:
    program = (
        "import sys; import trtllm_kvfix.offload.connector, trtllm_kvfix.offload.worker\n"
        "print([name for name in sys.modules if 'remote' in name or 'mooncake' in name])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def args(model: Any, **more: Any) -> Any:
    return SimpleNamespace(kv_cache_config=SimpleNamespace(tokens_per_block=32, dtype="fp8"), model=model, **more)


def snapshot(folder: Path, digest: str = DIGEST) -> Path:
    """The hub's cache has a snapshot in this form."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "snapshot").mkdir()
    for name, blob in (("model.safetensors", digest), ("config.json", "cd" * 20)):
        (folder / "blobs" / blob).write_text(name)
        (folder / "snapshot" / name).symlink_to(folder / "blobs" / blob)
    return folder / "snapshot"


def test_a_snapshot_is_known_by_the_digests_of_its_files(tmp_path: Path) -> None:
    settings = RemoteSettings()
    here, there = snapshot(tmp_path / "a"), snapshot(tmp_path / "b")
    assert parts_of(args(here), settings) == parts_of(args(str(there)), settings)
    other = snapshot(tmp_path / "c", "ac" * 32)
    assert parts_of(args(here), settings) != parts_of(args(other), settings)


def test_other_files_need_a_name(tmp_path: Path) -> None:
    folder = snapshot(tmp_path / "a")
    (folder / "model-2.safetensors").write_text("weights")
    for model in (folder, tmp_path / "none", "meta/name", None):
        with pytest.raises(SettingsError, match=r"kvfix.offload.remote.model is not set"):
            parts_of(args(model), RemoteSettings())
        assert parts_of(args(model), RemoteSettings(model="x"))["model"] == "x"
