"""Makes the host tier of a rank: of the size that was asked for, near the GPU, or not at all."""

from pathlib import Path
from typing import Any

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.native import Device, DeviceError, HostPool
from trtllm_kvfix.offload.limits import memory_lock_shortage, require_room, text_of
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import Ranks, together
from trtllm_kvfix.sizes import bytes_text

SMALL_BYTES = 64 << 20  # no prompt of a real model fits below that
SEAL_BYTES = 32  # behind each block that may leave this machine (offload/remote/seals.py)
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
