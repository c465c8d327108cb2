"""The settings themselves, one model for each section of `kvfix:`. Where their values come from is in settings.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    RootModel,
    field_validator,
)
from pydantic_core import PydanticCustomError

from trtllm_kvfix.fix_ids import BLIND, FIX_IDS
from trtllm_kvfix.offload_section import FileName, OffloadSettings
from trtllm_kvfix.sizes import parse_size

PORT_MAX = 65535
Word: TypeAlias = Literal["auto", "on", "off", "observe"]  # the choices for a fix
ManagerWord: TypeAlias = Literal["upstream", "native"]
CanaryWord: TypeAlias = Literal["off", "observe"]
# Fixes of the bound manager's admission, storing and pins. Ours does these right by itself.
NEEDLESS_WITH_NATIVE = ("computed-blocks", "batched-admission", "concurrent-pins")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _size(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("write a number of blocks, or bytes with a unit such as 40GiB")
    parse_size(value)
    return value


def _choice(value: Any) -> Any:
    """YAML reads a bare `on` or `off` as true or false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _staging_mode(value: Any) -> Any:
    if value == "device_table":
        raise ValueError("it is gone, because an early copy is faster for tables of every size; write auto")
    return value


def _file_bytes(value: object) -> int:
    wanted = "bytes with a unit such as 1GiB"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"write {wanted}")
    size = parse_size(value, wanted)
    count = int(size.number * (size.unit_bytes or 1))
    if count < 1:
        raise ValueError("write a size from 1 byte on; with kvfix.record null nothing is recorded")
    return count


def _folder(value: str) -> str:
    if not Path(value).is_absolute():
        raise ValueError("each process would look for it in a folder of its own; write an absolute path")
    return value


# One validator instead of a union's two: the error then names the setting and not a branch of its type.
Size: TypeAlias = Annotated[int | str, PlainValidator(_size)]
CanaryChoice: TypeAlias = Annotated[CanaryWord, BeforeValidator(lambda value: "off" if value is False else value)]
Choice: TypeAlias = Annotated[Word, BeforeValidator(_choice)]
Folder: TypeAlias = Annotated[str, AfterValidator(_folder)]
FileBytes: TypeAlias = Annotated[int, PlainValidator(_file_bytes)]
StagingMode: TypeAlias = Annotated[Literal["auto", "snapshot", "early_copy"], BeforeValidator(_staging_mode)]


class ReplaySettings(Section):
    """The cache and the scheduler that `trtllm-kvfix replay` models where its options do not say otherwise."""

    tokens_per_block: int = Field(default=32, ge=1)
    """Tokens of a block."""
    blocks_primary: Size = 16384
    """GPU tier: a number of blocks, or bytes with a unit such as `40GiB`."""
    blocks_host: Size = 0
    """Host tier, in the same way; 0: none."""
    host_tier: Literal["built-in", "native", "connector"] = "built-in"
    """`built-in`: TensorRT-LLM's own. `native`: the native manager's, with `adaptive`. `connector`: the offload
    connector of this package."""
    host_admission: Literal["adaptive", "all"] = "adaptive"
    """Blocks that may push others out of the connector's full tier, as `offload.admission`."""
    blocks_remote: Size = 0
    """The store behind the connector's host tier; 0: none."""
    max_batch_size: int = Field(default=64, ge=1)
    """Requests that run at once."""
    max_num_tokens: int = Field(default=8192, ge=1)
    """Tokens that one iteration computes."""
    tokens_per_iteration: int = Field(default=1, ge=1)
    """Tokens that a running request gains in an iteration."""
    iteration_ms: float = Field(default=0, ge=0)
    """Time that an iteration takes in the model; 0: arrivals have no time."""
    bytes_per_block: int | None = Field(default=None, ge=1)
    """Bytes of a block, where sizes are given in bytes."""
    layers: int | None = Field(default=None, ge=1)
    """Layers of the model, from which bytes of a block follow."""
    kv_heads: int | None = Field(default=None, ge=1)
    """KV heads of the model."""
    head_dim: int | None = Field(default=None, ge=1)
    """Size of a head."""
    dtype_bytes: int = Field(default=2, ge=1)
    """Bytes of a value in the cache."""


class FixChoices(RootModel[Mapping[str, Choice]]):
    """Each fix by its id. `auto`: applied where its probe answers *needed*. `on`: the same, but *unknown* stops the
    start. `observe`: where needed, it counts what it would do and changes nothing."""

    model_config = ConfigDict(frozen=True, strict=True)
    root: Mapping[str, Choice] = dict.fromkeys(FIX_IDS, "auto")

    @field_validator("root")
    @classmethod
    def _of_every_fix(cls, given: Mapping[str, Word]) -> Mapping[str, Word]:
        for fix_id in given:
            if fix_id not in FIX_IDS:
                raise ValueError(f"there is no fix {fix_id}; known are {', '.join(FIX_IDS)}")
            if given[fix_id] == "observe" and fix_id in BLIND:
                raise PydanticCustomError(
                    "blind",
                    "this fix cannot observe: {why}; write auto, on or off",
                    {"why": BLIND[fix_id], "below": fix_id},
                )
        return {fix_id: given.get(fix_id, "auto") for fix_id in FIX_IDS}

    def of(self, fix_id: str) -> Word:
        return self.root[fix_id]


class FixSettings(Section):
    """Settings of a fix besides on and off; each fix gets them when its replacements are made."""

    read_back_every: int = Field(default=0, ge=0)
    """One shipment of block offsets in so many is read back and compared; 0: none."""
    staging_slots: int = Field(default=3, ge=2, le=64)
    """Shipments that may be pending at once, for each ring."""
    staging_mode: StagingMode = "auto"
    """`snapshot`, `early_copy`, or `auto`, which chooses by the size of the table."""


class Settings(Section):
    """Everything that can be set below `kvfix:`."""

    enabled: bool = True
    """The switch. The hook reads it when TensorRT-LLM is imported."""
    force: bool = False
    """Lets `on` apply a fix although its probe says *unknown*."""
    manager: ManagerWord = "upstream"
    """`native`: our block manager behind upstream's V1 class."""
    native_host_admission: Literal["all", "adaptive"] = "all"
    """Evicted blocks that may push others out of the native manager's full host tier. `adaptive`: blocks for which no
    second request has asked have only a share of it."""
    fixes: FixChoices = FixChoices()
    """The choice for each fix, by its id: `auto`, `on`, `off` or `observe`."""
    tuning: FixSettings = FixSettings()
    """Further settings of fixes."""
    canary: CanaryChoice = "off"
    """`observe`: say when a cached block has changed behind the server's back. V2 or `manager: native`."""
    canary_blocks_per_step: int = Field(default=8, ge=1, le=4096)
    """Blocks that the canary looks at in each step, besides those that something has happened to."""
    metrics_port: int | None = Field(default=None, ge=1, le=PORT_MAX)
    """Prometheus port of rank 0; rank r listens on this + r. None: no metrics are served."""
    agreement_timeout_s: float = Field(default=120, gt=0)
    """Longest wait of a rank for the others: before an engine starts, and when ranks of the offload connector meet."""
    runtime_dir: Folder | None = None
    """Folder for attestations. None: a folder of this user below the temporary one."""
    record: FileName = None
    """File to which the requests are recorded for `trtllm-kvfix replay`. None: nothing is recorded."""
    record_bytes_max: FileBytes = 1 << 30
    """The recording ends at this size, in bytes or with a unit such as `1GiB`."""
    replay: ReplaySettings = ReplaySettings()
    """Defaults of `trtllm-kvfix replay`."""
    offload: OffloadSettings = OffloadSettings()
    """The offload connector."""

    def choice_of(self, fix_id: str) -> Word:
        """The choice for a fix, with all other settings considered."""
        needless = self.manager == "native" and fix_id in NEEDLESS_WITH_NATIVE
        return "off" if needless else self.fixes.of(fix_id)
