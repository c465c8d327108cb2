"""Retention of a request's blocks, from upstream's `KvCacheRetentionConfig`.

It is noted on the request while that is made, under a name that upstream copies to a request's children.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from trtllm_kvfix.native import Retention

KEYWORD = "kv_cache_retention_config"
NOTED = "py_kvfix_retention"


class Kept(NamedTuple):
    """Plain values, which can be copied as upstream copies a request."""

    ranges: tuple[tuple[int, int | None, int, int | None], ...]
    decode_priority: int
    decode_duration_ms: int | None

    @property
    def has_duration(self) -> bool:
        return self.decode_duration_ms is not None or any(duration is not None for *_, duration in self.ranges)

    def for_the_core(self) -> "Retention":
        from trtllm_kvfix.native import Retention  # noqa: PLC0415  needs the extension

        return Retention(list(self.ranges), self.decode_priority, self.decode_duration_ms)


def note(request: Any, config: Any) -> None:
    setattr(request, NOTED, kept(config))


def kept(config: Any) -> Kept:
    ranges = sorted(
        (each.token_start, each.token_end, each.priority, _milliseconds(each.duration_ms))
        for each in config.token_range_retention_configs
    )
    return Kept(tuple(ranges), config.decode_retention_priority, _milliseconds(config.decode_duration_ms))


def of(request: Any) -> Kept | None:
    return getattr(request, NOTED, None)


def _milliseconds(duration: Any) -> int | None:
    """A binding shows C++'s durations as timedelta."""
    if duration is None:
        return None
    return round(duration / timedelta(milliseconds=1)) if isinstance(duration, timedelta) else int(duration)
