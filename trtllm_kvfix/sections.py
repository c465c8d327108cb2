"""The settings themselves, one model for each section of `kvfix:`. Where their values come from is in settings.py."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, RootModel, field_validator

from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.sizes import parse_size

PORT_MAX = 65535
Word: TypeAlias = Literal["auto", "on", "off", "observe"]  # what may be said of a fix
ManagerWord: TypeAlias = Literal["upstream", "native"]
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


# One validator instead of a union's two: the error then names the setting and not a branch of its type.
Size: TypeAlias = Annotated[int | str, PlainValidator(_size)]
Choice: TypeAlias = Annotated[Word, BeforeValidator(_choice)]
StagingMode: TypeAlias = Annotated[Literal["auto", "snapshot", "early_copy"], BeforeValidator(_staging_mode)]


class ReplaySettings(Section):
    """The cache and the scheduler that `trtllm-kvfix replay` models where its options do not say otherwise."""

    tokens_per_block: int = Field(default=32, ge=1)
    blocks_primary: Size = 16384
    blocks_host: Size = 0
    host_tier: Literal["built-in", "connector"] = "built-in"
    host_admission: Literal["adaptive", "all"] = "adaptive"
    blocks_remote: Size = 0  # of the store behind the connector's host tier
    max_batch_size: int = Field(default=64, ge=1)
    max_num_tokens: int = Field(default=8192, ge=1)
    tokens_per_iteration: int = Field(default=1, ge=1)
    iteration_ms: float = Field(default=0, ge=0)
    bytes_per_block: int | None = Field(default=None, ge=1)
    layers: int | None = Field(default=None, ge=1)
    kv_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    dtype_bytes: int = Field(default=2, ge=1)


class FixChoices(RootModel[Mapping[str, Choice]]):
    """Each fix by its id. `auto`: where its probe says needed. `on`: and one that cannot tell stops the start.
    `observe`: where needed, it looks on, counts and changes nothing."""

    model_config = ConfigDict(frozen=True, strict=True)
    root: Mapping[str, Choice] = dict.fromkeys(FIX_IDS, "auto")

    @field_validator("root")
    @classmethod
    def _of_every_fix(cls, given: Mapping[str, Word]) -> Mapping[str, Word]:
        for fix_id in given:
            if fix_id not in FIX_IDS:
                raise ValueError(f"there is no fix {fix_id}; known are {', '.join(FIX_IDS)}")
        return {fix_id: given.get(fix_id, "auto") for fix_id in FIX_IDS}

    def of(self, fix_id: str) -> Word:
        return self.root[fix_id]


class FixSettings(Section):
    """What a fix may be told besides on and off; each one gets it when its replacements are made."""

    read_back_every: int = Field(default=0, ge=0)  # one shipment in so many is read back and compared; 0: none
    staging_slots: int = Field(default=3, ge=2, le=64)  # of each ring: shipments that may be pending at once
    staging_mode: StagingMode = "auto"


class Settings(Section):
    """Everything that can be set below `kvfix:`."""

    enabled: bool = True  # the hook reads it when TensorRT-LLM is imported
    force: bool = False  # lets `on` apply a fix whose probe says unknown
    manager: ManagerWord = "upstream"  # native: our block manager behind upstream's V1 class
    fixes: FixChoices = FixChoices()
    tuning: FixSettings = FixSettings()
    metrics_port: int | None = Field(default=None, ge=1, le=PORT_MAX)  # of rank 0; rank r listens on this + r
    agreement_timeout_s: float = Field(default=120, gt=0)  # how long ranks wait for each other's attestations
    runtime_dir: str | None = None  # where attestations are written; by default one of this user's
    replay: ReplaySettings = ReplaySettings()
    offload: OffloadSettings = OffloadSettings()

    def choice_of(self, fix_id: str) -> Word:
        """What is to become of a fix, with everything else that was said."""
        needless = self.manager == "native" and fix_id in NEEDLESS_WITH_NATIVE
        return "off" if needless else self.fixes.of(fix_id)
