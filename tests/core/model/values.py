"""Plain values: what a caller asks for and what he gets. No behaviour beyond reading themselves."""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["primary", "host"]
TIERS: tuple[Tier, Tier] = ("primary", "host")
PRIORITY_DEFAULT = 35

Salt = str | bytes | int | None
Tokens = tuple[int, ...]
Extras = tuple[tuple[int, int, bytes], ...]
Prefix = tuple[tuple[Tokens, Extras], ...]  # of whole blocks
RootKey = tuple[int | None, str, Salt]


class OutOfBlocks(Exception):
    def __init__(self, blocks_needed: int, blocks_free: int, window_size: int | None) -> None:
        super().__init__(f"{blocks_needed=} {blocks_free=} {window_size=}")
        self.numbers = (blocks_needed, blocks_free, window_size)


class UnknownRequest(Exception):
    pass


class BlockInFlight(Exception):
    pass


@dataclass(frozen=True)
class Range:
    begin: int
    end: int | None
    priority: int
    duration_ms: int | None


@dataclass(frozen=True)
class Retention:
    ranges: tuple[Range, ...] = ()
    decode_priority: int = PRIORITY_DEFAULT
    decode_duration_ms: int | None = None

    def at(self, token: int) -> Range | None:
        """The range that holds the token."""
        for r in self.ranges:
            if r.begin <= token and (r.end is None or token < r.end):
                return r
        return None


@dataclass(frozen=True)
class Request:
    request_id: int
    tokens: Tokens
    beam_width: int = 1
    lora_id: int | None = None
    salt: Salt = None
    extra_keys: Extras = ()
    retention: Retention = Retention()

    @property
    def root(self) -> RootKey:
        return (self.lora_id, type(self.salt).__name__, self.salt)

    def prefix(self, blocks: int, size: int) -> Prefix:
        """The contents of that many leading blocks."""
        return tuple(
            (self.tokens[i * size : (i + 1) * size], self.extras(i * size, (i + 1) * size)) for i in range(blocks)
        )

    def extras(self, begin: int, end: int) -> Extras:
        """The extras of the block that covers tokens [begin, end)."""
        return tuple((a - begin, b - begin, digest) for a, b, digest in self.extra_keys if a < end and b > begin)


@dataclass(frozen=True)
class WindowShape:
    size: int | None
    primary: int
    host: int = 0


@dataclass(frozen=True)
class Config:
    tokens_per_block: int
    windows: tuple[WindowShape, ...]  # ascending
    max_beam_width: int = 1
    block_reuse: bool = True
    partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    offload_priority_min: int = 30
    host_admission: str = "all"


@dataclass(frozen=True)
class Admission:
    request_id: int
    tokens_reused: int
    tokens_new: int
    blocks_reused: int
    blocks_onboarded: int
    blocks_new: int


@dataclass(frozen=True)
class BatchAdmission:
    admitted: list[Admission]
    deferred: list[int]


@dataclass(frozen=True)
class PrefixReuse:
    tokens: int
    blocks_primary: int
    blocks_host: int


@dataclass
class RequestStats:
    tokens_reused: int = 0
    tokens_new: int = 0
    blocks_reused: int = 0
    blocks_onboarded: int = 0
    blocks_new: int = 0
    blocks_missed: int = 0
    blocks_grown: int = 0
