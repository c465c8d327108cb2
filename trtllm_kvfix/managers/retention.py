"""How long a request wants its blocks kept: upstream's `KvCacheRetentionConfig`.

The bound request takes it and never shows it again. So it is noted on the request when that is made, under a name that
upstream copies to a request's children.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import LLM_REQUEST

if TYPE_CHECKING:
    from trtllm_kvfix.native import Retention
    from trtllm_kvfix.overlay.activation import Activation

TRIGGER = LLM_REQUEST
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


def replacements(active: "Activation") -> list[Replacement]:
    if active.settings.manager != "native":
        return []
    return [Replacement(Seam(TRIGGER, "LlmRequest.__init__"), noting)]


def noting(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def make_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        config = kwargs.get(KEYWORD)
        if config is not None:
            setattr(self, NOTED, kept(config))

    return make_and_note


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
