"""Check that the machine can hold the host tier of all its ranks, and show the arithmetic if it cannot.

Pages of a host tier cannot be given back under memory pressure. If it does not fit, the kernel kills a process minutes
later, without a message; so such a tier is refused at the start.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trtllm_kvfix import machine
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.sizes import bytes_text

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
