"""The section `offload:` of `kvfix:`. Knows nothing of the connector, so that reading settings loads nothing else."""

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from trtllm_kvfix.sizes import parse_size

BYTES = "bytes with a unit such as 55GiB"
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")  # IPv6 in brackets
PORT = re.compile(r"[0-9]{1,5}")


def _bytes(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"write {BYTES}")
    size = parse_size(value, BYTES)
    count = int(size.number * (size.unit_bytes or 1))
    if count < 1:
        raise ValueError("the host tier needs at least one block; leave the connector out for none")
    return count


def _node(value: Any) -> int | Literal["auto"] | None:
    if value in ("auto", None) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value  # type: ignore[no-any-return]
    raise ValueError("write `auto`, a NUMA node's number, or null for none")


def _choice(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    choice = "off" if value is False else value
    if choice not in ("off", "sample", "all"):
        raise ValueError("write off, sample or all")
    return choice


Bytes: TypeAlias = Annotated[int | None, PlainValidator(_bytes)]
Node: TypeAlias = Annotated[int | Literal["auto"] | None, PlainValidator(_node)]
Verify: TypeAlias = Annotated[Literal["off", "sample", "all"], PlainValidator(_choice)]


def _optional_bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"write {BYTES}, or 0")
    size = parse_size(value, BYTES)
    return int(size.number * (size.unit_bytes or 1))


def _address(value: object) -> str | None:
    if value is None:
        return None
    host, _, port = str(value).rpartition(":")
    if not (isinstance(value, str) and HOST.fullmatch(host) and PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise ValueError("write a host and a port, such as 10.0.0.5:50051")
    return value


def _host(value: object) -> str | None:
    if value is None or (isinstance(value, str) and HOST.fullmatch(value)):
        return value
    raise ValueError("write a name or an address, such as 10.0.0.7, or null for the address that faces the master")


def _file_name(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise ValueError("write the name of a file, or null for none")


def _name(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise ValueError("write a name for these weights alone, or null for what their files are named by")


AUTO: Literal["auto"] = "auto"


def _min_reuse(value: Any) -> Any:
    if value == AUTO or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError("write a number of blocks from 1 on, or auto")


MinReuse: TypeAlias = Annotated[int | Literal["auto"], PlainValidator(_min_reuse)]
SegmentBytes: TypeAlias = Annotated[int, PlainValidator(_optional_bytes)]
Address: TypeAlias = Annotated[str | None, PlainValidator(_address)]
Host: TypeAlias = Annotated[str | None, PlainValidator(_host)]
FileName: TypeAlias = Annotated[str | None, PlainValidator(_file_name)]
Name: TypeAlias = Annotated[str | None, PlainValidator(_name)]


class RemoteSettings(BaseModel):
    """A store that nodes share, behind the host tier. Without a kind there is none, and nothing of it is loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["mooncake"] | None = None
    """The store. None: there is no remote tier, and nothing of it is loaded."""
    master: Address = None
    """Host and port of the store's master."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """Protocol between nodes."""
    host: Host = None
    """Address at which other nodes reach this one. None: the address that faces the master."""
    segment_bytes: SegmentBytes = 0
    """Memory of this node that the store may use while this engine runs."""
    min_reuse_blocks: int = Field(default=4, ge=1)
    """Shorter prefixes are computed."""
    model: Name = None
    """Names these weights and no others. None: what the checkpoint's files are named by."""
    shared_adapters: bool = False
    """LoRA adapters have the same numbers on all nodes."""
    lookup_wait_ms: float = Field(default=100, gt=0, le=1000)
    """A prompt waits this long for an answer, and a little longer for each of its blocks."""
    timeout_s: float = Field(default=10, gt=0)
    """A transfer that takes longer is given up, with the store's client."""


class OffloadSettings(BaseModel):
    """The host tier of each rank, and what is worth moving to it and back."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host_bytes: Bytes = None
    """Host tier of each rank, in bytes with a unit. Rounded down to whole blocks, and to nothing else."""
    min_reuse_blocks: MinReuse = 1
    """A prefix of fewer blocks is computed rather than loaded. `auto`: so is one that would take longer to load."""
    admission: Literal["adaptive", "all"] = "adaptive"
    """Blocks that may push others out of a full tier: `all`, or those asked for before, if that finds more."""
    offload_priority_min: int = Field(default=30, ge=0, le=100)
    """Blocks of a lower retention priority are not stored."""
    verify: Verify = "off"
    """Compare loaded blocks with what was stored: `off`, `sample` or `all`."""
    numa_node: Node = "auto"
    """NUMA node of the host tier. `auto`: that of the GPU, if the machine reports it. None: any node."""
    huge_pages: bool = True
    """Ask for huge pages."""
    queue_max: int = Field(default=256, ge=1)
    """Transfers of one direction that wait for the copy thread."""
    in_flight_max: int = Field(default=32, ge=1)
    """Transfers of one direction that the device has."""
    copy_by: Literal["auto", "dma", "kernel"] = "auto"
    """`dma`, `kernel`, or `auto`: whichever is faster for these blocks, measured at the start."""
    copy_sms: int = Field(default=2, ge=1)
    """Multiprocessors of the GPU that a copy by kernel may take."""
    transfer_timeout_s: float = Field(default=120, gt=0)
    """A transfer that takes longer stops the engine."""
    shutdown_timeout_s: float = Field(default=10, gt=0, le=86400)
    """Time for running transfers to end at shutdown."""
    log_every_requests: int = Field(default=100, ge=0)
    """A line of numbers in the log every so many requests; 0: none."""
    control_file: FileName = None
    """A file that is read while serving, to change what runs."""
    remote: RemoteSettings = RemoteSettings()
    """The store behind the host tier."""
