"""A host tier that the machine cannot hold is refused at the start, with the arithmetic."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trtllm_kvfix.machine
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import DeviceError, HostPool, open_device
from trtllm_kvfix.offload.connector import refuse_second_host_tier
from trtllm_kvfix.offload.host_tier import HostTierMaker, require_room
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank
from trtllm_kvfix.settings import load

from .conftest import MakeBench

GIB = 1 << 30


def machine(root: Path, files: dict[str, str]) -> Path:
    memory = "MemTotal: 1073741824 kB\nMemAvailable: 1073741824 kB\n"
    for name, text in {"proc/meminfo": memory, "proc/self/cgroup": "0::/\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(total: str, used: int, inactive_file: int = 0, place: str = "sys/fs/cgroup") -> dict[str, str]:
    return {
        f"{place}/memory.max": f"{total}\n",
        f"{place}/memory.current": f"{used}\n",
        f"{place}/memory.stat": f"anon 1\ninactive_file {inactive_file}\n",
    }


def test_ranks_times_size_must_fit_the_group(tmp_path: Path) -> None:
    root = machine(tmp_path, group(str(128 * GIB), 32 * GIB))
    require_room(48 * GIB, 2, root)
    with pytest.raises(SettingsError) as caught:
        require_room(55 * GIB, 2, root)
    told = str(caught.value).replace(str(tmp_path), "")
    assert told == (
        "kvfix.offload.host_bytes: 2 ranks x 55.0 GiB = 110.0 GiB, but /sys/fs/cgroup/memory.max leaves 96.0 GiB "
        "(128.0 GiB - 32.0 GiB in use); at most 48.0 GiB for each rank"
    )


def test_files_that_nobody_reads_are_not_in_the_way(tmp_path: Path) -> None:
    require_room(20 * GIB, 1, machine(tmp_path, group(str(32 * GIB), 30 * GIB, inactive_file=20 * GIB)))


def test_a_group_around_this_one_counts(tmp_path: Path) -> None:
    inner = group("max", 0, place="sys/fs/cgroup/pod/server")
    outer = group(str(8 * GIB), 0, place="sys/fs/cgroup/pod")
    root = machine(tmp_path, {**inner, **outer, "proc/self/cgroup": "0::/pod/server\n"})
    require_room(8 * GIB, 1, root)
    with pytest.raises(SettingsError, match=r"pod/memory\.max leaves 8\.0 GiB"):
        require_room(9 * GIB, 1, root)


def test_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
    }
    with pytest.raises(SettingsError, match=r"leaves 3\.0 GiB"):
        require_room(4 * GIB, 1, machine(tmp_path, files))


def test_the_memory_of_the_machine_counts(tmp_path: Path) -> None:
    meminfo = {"proc/meminfo": "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n"}
    with pytest.raises(SettingsError, match=r"memory of this machine leaves 4\.0 GiB"):
        require_room(5 * GIB, 1, machine(tmp_path, meminfo))


def test_a_machine_that_says_nothing_refuses_nothing(tmp_path: Path) -> None:
    require_room(1 << 50, 8, tmp_path)


def test_the_start_is_refused_before_anything_is_mapped(tmp_path: Path) -> None:
    root = machine(tmp_path, group("65536", 0))
    device = open_device("cpu")
    make = HostTierMaker(OffloadSettings.model_validate({"host_bytes": "128KiB"}), root)
    with pytest.raises(SettingsError, match=r"leaves 64\.0 KiB"):
        make(device, 4096, OneRank())
    pool = HostTierMaker(OffloadSettings.model_validate({"host_bytes": "63KiB"}), root)(device, 4096, OneRank())
    assert (pool.slots, pool.bytes_pinned) == (15, 15 * 4096)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({}, "host_bytes is not set"), ({"host_bytes": "1KiB"}, "a block of this model takes 4.0 KiB")],
)
def test_a_size_that_holds_no_block_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        HostTierMaker(OffloadSettings.model_validate(settings))(open_device("cpu"), 4096, OneRank())


@pytest.mark.parametrize(("segment", "allowed"), [("16MiB", True), ("16383KiB", False), ("1KiB", False), ("0", True)])
def test_a_segment_that_the_store_does_not_take_is_refused(segment: str, allowed: bool) -> None:
    remote = {"kind": "mooncake", "master": "10.0.0.5:50051", "segment_bytes": segment}
    make = HostTierMaker(OffloadSettings.model_validate({"host_bytes": "64KiB", "remote": remote}))
    refused = pytest.raises(SettingsError, match=r"takes at least 16\.0 MiB of each\. Write 16\.0 MiB or more")
    with nullcontext() if allowed else refused:
        make(open_device("cpu"), 4096, OneRank())


def test_upstreams_own_host_tier_is_refused_beside_this_one() -> None:
    for size in (None, 0):
        refuse_second_host_tier(SimpleNamespace(kv_cache_config=SimpleNamespace(host_cache_size=size)))
    with pytest.raises(SettingsError, match="host_cache_size is 1024"):
        refuse_second_host_tier(SimpleNamespace(kv_cache_config=SimpleNamespace(host_cache_size=1024)))


@pytest.mark.parametrize(("text", "count"), [("55GiB", 55 << 30), ("1.5 MiB", 3 << 19), ("4096", 4096)])
def test_sizes_are_read_as_users_write_them(text: str, count: int) -> None:
    assert load(environ={"TRTLLM_KVFIX_OFFLOAD_HOST_BYTES": text}).offload.host_bytes == count


@pytest.mark.parametrize(
    ("name", "text"),
    [("HOST_BYTES", "much"), ("HOST_BYTES", "0"), ("VERIFY", "some"), ("NUMA_NODE", "-1"), ("MIN_REUSE_BLOCKS", "0")],
)
def test_settings_that_make_no_sense_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"TRTLLM_KVFIX_OFFLOAD_{name} is"):
        load(environ={f"TRTLLM_KVFIX_OFFLOAD_{name}": text})


LIMIT = 64 << 10
HAS_CAPABILITY = {"proc/self/status": "CapPrm:\t0000000000000000\nCapEff:\t0000000000004000\n"}
HAS_ALL_OTHERS = {"proc/self/status": "CapPrm:\t0000000000004000\nCapEff:\tffffffffffffbfff\n"}


@pytest.mark.parametrize(
    ("limit", "files", "is_short"),
    [
        (LIMIT, HAS_ALL_OTHERS, True),
        (LIMIT, {}, True),
        (LIMIT, HAS_CAPABILITY, False),
        (LIMIT * 2, {}, False),
        (None, {}, False),
    ],
)
def test_a_low_limit_on_locked_memory_is_told_with_numbers_and_refuses_nothing(
    limit: int | None,
    files: dict[str, str],
    is_short: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(trtllm_kvfix.machine, "memory_lock_bytes", lambda: limit)
    make = HostTierMaker(OffloadSettings.model_validate({"host_bytes": "128KiB"}), machine(tmp_path, files))
    assert make(open_device("cpu"), 4096, OneRank()).slots == 32
    told = [line for line in caplog.messages if "more than the limit on locked memory (ulimit -l) of 64.0 KiB" in line]
    assert len(told) == is_short
    assert all("rank 0: a rank's host tier of 128.0 KiB" in line for line in told)


@pytest.mark.parametrize("limit", [LIMIT, None])
def test_a_driver_that_refuses_to_pin_is_told_with_the_limit(
    limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> HostPool:
        raise DeviceError("out of memory")

    monkeypatch.setattr(trtllm_kvfix.machine, "memory_lock_bytes", lambda: limit)
    monkeypatch.setattr("trtllm_kvfix.offload.host_tier.HostPool", refuse)
    make = HostTierMaker(OffloadSettings.model_validate({"host_bytes": "128KiB"}), machine(tmp_path, {}))
    why = r"\(ulimit -l\) of 64\.0 KiB" if limit else "would allow it"
    with pytest.raises(SettingsError, match=f"cannot pin 128.0 KiB: out of memory; .*{why}"):
        make._pin(open_device("cpu"), 4096, None)


@pytest.mark.parametrize(("blocks", "is_said"), [(40, True), (64, False)])
def test_a_tier_that_is_smaller_than_what_runs_is_said_with_the_arithmetic(
    blocks: int, is_said: bool, make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    make_bench(host_blocks=blocks, executor={"blocks": 64})
    said = [line for line in caplog.messages if "push each other out" in line]
    assert len(said) == is_said
    assert not is_said or ("40 blocks" in said[0] and "64 on the GPU" in said[0])
