"""H17 without TensorRT-LLM: a host tier of one block, which a prompt matches in part."""

from collections.abc import Callable
from dataclasses import dataclass

from trtllm_kvfix.hazards.simulated import require


@dataclass
class _Config:
    host_cache_size: int | None
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True


class _Tiers:
    """As V1 of 1.2: room on the device is made by a copy to the host, and only then the match is copied."""

    def __init__(self, kv_cache_config: _Config, kind: str) -> None:
        self.kind = kind
        self._copies = kv_cache_config.enable_partial_reuse and kv_cache_config.copy_on_partial_reuse
        self._has_host = bool(kv_cache_config.host_cache_size)
        self._matched = "the match"

    def admit(self) -> str:
        """What the new block begins with."""
        if not self._copies:
            return "nothing"
        if self._has_host:
            self._matched = "what was evicted"
        return self._matched


def self_test(making: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    make = making(_Tiers.__init__)

    def begins_with(config: _Config) -> str:
        tiers = _Tiers.__new__(_Tiers)
        make(tiers, config, kind="SELF")
        require(config.copy_on_partial_reuse and tiers.kind == "SELF", "a manager was not made as it was asked for")
        return tiers.admit()

    require(begins_with(_Config(host_cache_size=1)) == "nothing", "a match was copied that may be overwritten")
    for host_cache_size in (0, None):
        found = begins_with(_Config(host_cache_size))
        require(found == "the match", "a match was not copied where nothing overwrites it")
