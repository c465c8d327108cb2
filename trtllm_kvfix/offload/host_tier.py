"""The host tier of a rank: of the size that was asked for, near the GPU, or not at all.

Pages of a host tier cannot be given back under memory pressure. If it does not fit, the kernel kills a process minutes
later, without a message. So a tier that the container or the machine cannot hold, with those of the other ranks, is
refused at the start, and the message shows the arithmetic.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_kvfix import machine
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.native import Device, DeviceError, HostPool
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import Ranks, together
from trtllm_kvfix.sizes import bytes_text

SMALL_BYTES = 64 << 20  # no prompt of a real model fits below that
SEGMENT_BYTES_MIN = 16 << 20  # of a client of Mooncake
SEAL_BYTES = 32  # behind each block that may leave this machine (`Seals` in remote/porter_process.py)
NODES = "sys/devices/system/node/node[0-9]*"


def require_host_bytes(settings: OffloadSettings) -> int:
    if settings.host_bytes is None:
        raise SettingsError(
            "the offload connector is configured, but kvfix.offload.host_bytes is not set; write the size of each "
            "rank's host tier, such as 55GiB"
        )
    return settings.host_bytes


def warn_where_it_is_small(slots: int, device_blocks: int, block_bytes: int) -> None:
    """Running requests can hold all blocks of the device, and the host tier has a second copy of each."""
    if slots < device_blocks:
        log.warning(
            "the host tier has %d blocks of %s (%s), and requests that run can hold %d on the GPU (%s): they push each "
            "other out of it before they come back; kvfix.offload.host_bytes above %s keeps more than they hold",
            slots, bytes_text(block_bytes), bytes_text(slots * block_bytes), device_blocks,
            bytes_text(device_blocks * block_bytes), bytes_text(device_blocks * block_bytes),
        )  # fmt: skip


class HostTierMaker:
    def __init__(self, settings: OffloadSettings, root: Path = Path("/")) -> None:
        self._settings = settings
        self._root = root
        self._wanted = require_host_bytes(settings)

    def __call__(self, device: Device, block_bytes: int, ranks: Ranks) -> HostPool:
        # Every rank looks before any of them maps, so that all see the same machine.
        machines = ranks.gather(text_of(self._root / "proc/sys/kernel/random/boot_id"))
        together(ranks, lambda: self._require_room(block_bytes, machines.count(machines[ranks.rank])))
        shortage = memory_lock_shortage(self._wanted, self._root)
        if shortage:
            log.warning("rank %d: %s; drivers that count pinned memory against it will refuse", ranks.rank, shortage)
        node = together(ranks, lambda: self._node(device))
        pool = together(ranks, lambda: self._pin(device, block_bytes, node), HostPool.close)
        where = f"NUMA node {node}" if pool.numa_bound else "no NUMA node in particular"
        log.info(
            "rank %d: host tier of %d blocks of %s: %d bytes wanted, %d mapped, %d pinned, %s",
            ranks.rank, pool.slots, bytes_text(block_bytes), self._wanted, pool.bytes, pool.bytes_pinned, where,
        )  # fmt: skip
        return pool

    def _require_room(self, block_bytes: int, ranks_here: int) -> None:
        if self._wanted < block_bytes:
            raise SettingsError(
                f"kvfix.offload.host_bytes is {bytes_text(self._wanted)}; a block of this model takes "
                f"{bytes_text(block_bytes)}"
            )
        if self._wanted < SMALL_BYTES:
            log.warning(
                "kvfix.offload.host_bytes is %d bytes, which is %d blocks: a number without a unit counts bytes",
                self._wanted, self._wanted // block_bytes,
            )  # fmt: skip
        segment = self._settings.remote.segment_bytes // ranks_here if self._settings.remote.kind else 0
        if 0 < segment < SEGMENT_BYTES_MIN:
            raise SettingsError(
                f"kvfix.offload.remote.segment_bytes is {bytes_text(segment)} for each of {ranks_here} ranks of this "
                f"machine; the store takes at least {bytes_text(SEGMENT_BYTES_MIN)} of each. Write "
                f"{bytes_text(ranks_here * SEGMENT_BYTES_MIN)} or more, or 0 for none"
            )
        require_room(self._wanted + segment, ranks_here, self._root)

    def _pin(self, device: Device, block_bytes: int, node: int | None) -> HostPool:
        travels = self._settings.remote.kind is not None
        try:
            return HostPool(
                device, host_bytes=self._wanted, block_bytes=block_bytes, tail_bytes=SEAL_BYTES if travels else 0,
                numa_node=node, huge_pages=self._settings.huge_pages, shared=travels,
            )  # fmt: skip
        except DeviceError as error:
            limit = memory_lock_shortage(self._wanted, self._root) or "the limit on locked memory would allow it"
            raise SettingsError(f"cannot pin {bytes_text(self._wanted)}: {error}; {limit}") from error

    def _node(self, device: Device) -> int | None:
        wanted = self._settings.numa_node
        if wanted != "auto":
            nodes = sorted(int(each.name[4:]) for each in self._root.glob(NODES))
            if wanted is not None and nodes and wanted not in nodes:
                raise SettingsError(f"kvfix.offload.numa_node is {wanted}; this machine has {nodes}")
            return wanted
        return None if device.simulated else node_of_gpu(self._root)


def node_of_gpu(root: Path) -> int | None:
    """The node of torch's current device. None if neither torch nor the machine says it."""
    try:
        import torch  # noqa: PLC0415  only where a GPU is

        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    except (ImportError, AttributeError, RuntimeError):
        return None
    node = text_of(root / "sys/bus/pci/devices" / place / "numa_node").strip()
    return int(node) if node.isdigit() else None


UNLIMITED = 1 << 60  # cgroups write very large numbers for no limit


class Limit(NamedTuple):
    name: str
    total: int
    used: int

    @property
    def left(self) -> int:
        return max(self.total - self.used, 0)


def require_room(bytes_per_rank: int, ranks: int, root: Path = Path("/")) -> None:
    """Raise SettingsError if `ranks` host tiers exceed what is left of any limit of this container or machine."""
    wanted = bytes_per_rank * ranks
    for limit in limits(root):
        if wanted > limit.left:
            raise SettingsError(
                f"kvfix.offload.host_bytes: {ranks} ranks x {bytes_text(bytes_per_rank)} = {bytes_text(wanted)}, "
                f"but {limit.name} leaves {bytes_text(limit.left)} ({bytes_text(limit.total)} - "
                f"{bytes_text(limit.used)} in use); at most {bytes_text(limit.left // ranks)} for each rank"
            )


def limits(root: Path) -> Iterator[Limit]:
    yield from cgroup_limits(root)
    meminfo = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in text_of(root / "proc/meminfo").splitlines())
        if rest.strip()
    }
    if "MemTotal" in meminfo and "MemAvailable" in meminfo:
        yield Limit("memory of this machine", meminfo["MemTotal"], meminfo["MemTotal"] - meminfo["MemAvailable"])


def cgroup_limits(root: Path) -> Iterator[Limit]:
    """The limits of this process's group and of all groups around it (version 2), or of what the container sees (1)."""
    group = next((line[3:] for line in text_of(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    mount = root / "sys/fs/cgroup"
    place = mount / group.strip("/")
    while place != mount.parent:
        yield from limit_of(place, "memory.max", "memory.current", "inactive_file")
        place = place.parent
    yield from limit_of(mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def limit_of(place: Path, total_name: str, used_name: str, reclaimable: str) -> Iterator[Limit]:
    total, used = number_of(place / total_name), number_of(place / used_name)
    if total is None or used is None or total >= UNLIMITED:
        return
    # The kernel gives back pages of files that are not being read before it kills a process.
    stats = dict(line.split()[:2] for line in text_of(place / "memory.stat").splitlines() if line.strip())
    yield Limit(f"{place / total_name}", total, max(used - int(stats.get(reclaimable, 0)), 0))


def memory_lock_shortage(bytes_per_rank: int, root: Path = Path("/")) -> str:
    """A warning if a rank's tier exceeds the kernel's limit on locked memory for each process, else empty.

    It is no reason to refuse: the driver pins pages without the kernel's count of locked ones. But other users of the
    memory are counted, such as a network card that registers it. Then this is the number to look at.
    """
    limit = machine.memory_lock_bytes()
    if limit is None or limit >= bytes_per_rank or machine.may_lock_any_memory(root / "proc/self/status"):
        return ""
    return (
        f"a rank's host tier of {bytes_text(bytes_per_rank)} is more than the limit on locked memory (ulimit -l) of "
        f"{bytes_text(limit)} for each process, and this one lacks CAP_IPC_LOCK"
    )


def number_of(file: Path) -> int | None:
    text = text_of(file).strip()
    return int(text) if text.isdigit() else None


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
