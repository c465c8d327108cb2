"""What scenarios on an installed TensorRT-LLM make of it, where they know which build it is."""

import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

from trtllm_kvfix.hazards.case import Comparison, Played, played
from trtllm_kvfix.hazards.ground import Ground, Unavailable, let_go_in_time
from trtllm_kvfix.hazards.small import FIRST, LENGTH, ROWS_MAX, SECOND, Requests, accepted, manager, mapping
from trtllm_kvfix.overlay.upstream import BINDINGS, PACKAGE, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.plurals import number_of

# Modules that a server imports anyway; the fixes wait for these.
MODULES = (BINDINGS, f"{PACKAGE}._torch.pyexecutor.py_executor_creator")


def imported() -> Upstream:
    for module in MODULES:
        import_module(module)
    return Upstream(may_import=True)


def with_two_batches(kind: Any, ground: Ground) -> tuple[Any, Any]:
    """A manager of this kind with their requests, and the stream on which it ships."""
    stream = ground.stream()
    cache = manager(kind, stream)
    ids = FIRST + SECOND
    if cache.add_dummy_requests(ids, [LENGTH] * len(ids)) is None:
        raise Unavailable("the cache has no room for four requests")
    return cache, getattr(cache, "_stream", stream)


def metadata(up: Upstream, cache: Any, ground: Ground) -> Any:
    """Attention's, of the first batch. Raises Unavailable where it wants what is not known."""
    lengths = [LENGTH] * len(FIRST)
    cls: Any = up.attribute(up.attention_module, "TrtllmAttentionMetadata")
    params: Any = up.attribute(f"{PACKAGE}._torch.metadata", "KVCacheParams")
    options = {
        "max_num_requests": ROWS_MAX,
        "max_num_sequences": ROWS_MAX,
        "max_num_tokens": sum(lengths),
        "kv_cache_manager": cache,
        "mapping": mapping(),
        "seq_lens": ground.lengths(lengths),
        "num_contexts": len(FIRST),
        "request_ids": FIRST,
        "prompt_lens": lengths,
        "kv_cache_params": params and params(use_cache=True, num_cached_tokens_per_seq=[0] * len(FIRST)),
    }
    try:
        return cls(**accepted(cls, options))
    except TypeError as error:
        raise Unavailable(f"attention metadata cannot be made: {error}") from error


def played_behind_a_held_stream(loop: Played, ground: Ground, stream: Any) -> Comparison:
    """For a loop of upstream's: the stream goes on when the loop is over, or when something in it has waited a while.

    Played twice, because what is made at its first use, such as pinned memory or a graph on the device, would wait for
    the held stream. What earlier loops left goes first: a driver gives memory back behind all streams, and the loop
    would seem to wait.
    """
    for _ in range(2):
        gc.collect()
        comparison, _waited = played(loop, let_go_in_time(ground.held(stream)))
    return comparison


class CountedRequests(Requests):
    """Requests that have to give all their blocks back."""

    def __init__(self, ground: Ground, up: Upstream, *, blocks: int, **more: Any) -> None:
        if up.attribute(RESOURCE_MANAGER, "KVCacheManager") is None:
            raise Unavailable("this TensorRT-LLM has no KVCacheManager")
        super().__init__(ground.stream(), blocks=blocks, **more)
        self._free = self._free_blocks()

    def released(self) -> str | None:
        """Describe the blocks that were not released. None if all were."""
        left = self._free - self._free_blocks()
        return f"{number_of(left, 'block')} not released" if left else None

    def _free_blocks(self) -> int:
        """Cached ones among them: they may be given to anybody."""
        return int(self.cache.impl.get_kv_cache_stats().free_num_blocks)


# Objects of upstream's whose constructors want a model.


def unmade(kind: Any, **attributes: Any) -> Any:
    """One that has these attributes: its constructor has not run, so there is nothing for its destructor to give back.

    An attribute that can be called stands in for the method of that name.
    """

    class Unmade(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            for name, value in attributes.items():
                setattr(self, name, value)

        def __del__(self) -> None: ...

    return Unmade()


class Reached(Exception):
    """A method of upstream's executor has begun."""


class Executor:
    """Goes through upstream's method up to the first attribute that is not given."""

    def __init__(self, begun: Callable[[], None] = lambda: None, **given: Any) -> None:
        self._begun = begun
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        self._begun()
        raise Reached(name)
