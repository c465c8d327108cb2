"""The arguments of a server, and how a YAML file is merged into them (surface 6.3, 7.1)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from .._standin.variant import since
from .._utils import mpi_rank
from ..mapping import Mapping

# The assumed size of a cached token, so that sizes in bytes and in blocks can be distinguished.
BYTES_PER_TOKEN = 16


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(StrictBaseModel):
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    max_attention_window: list[int] | None = None  # repeated over the layers
    max_tokens: int = 384
    host_cache_size: int = 0
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    tokens_per_block: int = 4
    use_kv_cache_manager_v2: bool = False
    enable_swa_scratch_reuse: bool = False  # V2's per-layer page tables

    @property
    def max_blocks(self) -> int:
        return self.max_tokens // self.tokens_per_block

    @property
    def host_blocks(self) -> int:
        return self.host_cache_size // (self.tokens_per_block * BYTES_PER_TOKEN)


class KvCacheConnectorConfig(StrictBaseModel):
    """Three names until presets came, with which they became optional (surface 6.3)."""

    if since("D"):
        connector: str | None = None
        server_url: str | None = None  # of a connector's own server, where it has one
    connector_module: str | None = None
    connector_scheduler_class: str | None = None
    connector_worker_class: str | None = None

    @model_validator(mode="after")
    def _names_or_a_preset(self) -> "KvCacheConnectorConfig":
        if since("D") and self.connector is not None:
            self._take(self.connector)
        for name in ("connector_module", "connector_scheduler_class", "connector_worker_class"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is required")
        return self

    def _take(self, preset: str) -> None:
        """Names that are given come before those of the preset."""
        from .._torch.pyexecutor.connectors.registry import CONNECTOR_REGISTRY  # noqa: PLC0415  as upstream

        if preset not in CONNECTOR_REGISTRY:
            raise ValueError(f"Unknown connector preset: {preset!r}. Known presets: {list(CONNECTOR_REGISTRY)}")
        for name, value in CONNECTOR_REGISTRY[preset].items():
            if getattr(self, name) is None:
                setattr(self, name, value)


class SpeculativeConfig(StrictBaseModel):
    """A draft model with a cache manager of its own, which runs behind the target in every step."""

    num_extra_kv_tokens: int = 0
    max_draft_len: int = 0


class LoraConfig(StrictBaseModel):
    max_loras: int = 8


@dataclass(frozen=True)
class ParallelConfig:
    tp_size: int
    pp_size: int

    def to_mapping(self) -> Mapping:
        """This process's place."""
        return Mapping(self.tp_size * self.pp_size, mpi_rank(), self.tp_size, self.pp_size)


class TorchLlmArgs(BaseModel):
    model: str
    backend: str = "pytorch"
    load_format: Literal["auto", "dummy"] = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    max_batch_size: int = 8
    max_num_tokens: int = 64
    max_seq_len: int = 64
    max_beam_width: int = 1
    # Values that upstream reads from the checkpoint.
    num_layers: int = 2
    architecture: Literal["dense", "sparse", "hybrid", "minimax_m3", "deepseek_v4"] = "dense"
    enable_chunked_prefill: bool = False
    disable_overlap_scheduler: bool = False
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    kv_connector_config: KvCacheConnectorConfig | None = None
    speculative_config: SpeculativeConfig | None = None
    lora_config: LoraConfig | None = None  # on experts; since D (surface 8)
    env_overrides: dict[str, str] | None = None
    extra_resource_managers: dict[Any, Any] = Field(default_factory=dict)

    @property
    def parallel_config(self) -> ParallelConfig:
        return ParallelConfig(self.tensor_parallel_size, self.pipeline_parallel_size)


# Nested settings that the file may give as mappings; the rest is taken as it comes.
FIELD_MODELS: dict[str, type[BaseModel]] = {
    "kv_cache_config": KvCacheConfig,
    "kv_connector_config": KvCacheConnectorConfig,
    "speculative_config": SpeculativeConfig,
    "lora_config": LoraConfig,
}


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any], llm_args_dict: dict[str, Any], extra_llm_api_options: str | None = None
) -> dict[str, Any]:
    """The file comes before the command line."""
    del extra_llm_api_options  # for messages
    parsed = dict(llm_args_dict)
    for name, model in FIELD_MODELS.items():
        if isinstance(parsed.get(name), dict):
            parsed[name] = model(**parsed[name])
    return llm_args | parsed


def update_llm_args_with_extra_options(llm_args: dict[str, Any], extra_llm_api_options: str | None) -> dict[str, Any]:
    if extra_llm_api_options is None:
        return llm_args
    with Path(extra_llm_api_options).open(encoding="utf-8") as file:
        given = yaml.safe_load(file)
    return update_llm_args_with_extra_dict(llm_args, given or {}, extra_llm_api_options)
