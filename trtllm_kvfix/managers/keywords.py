"""The keywords of upstream's V1 constructor: each is read, or refused by name.

An unknown keyword is refused too: it may change what the cache must hold.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.layout import ELEMENTS, CacheLayout, Window, held_most, pools_of
from trtllm_kvfix.managers.reports import EventManager

OFFLOAD_PRIORITY_MIN = 30  # if upstream gives none

# Each says what is wrong with a keyword's value, or nothing.
Check = Callable[[Any, Mapping[str, Any]], str]


def named(value: Any) -> str:
    """An enumeration of upstream's, by the name of the value."""
    return str(getattr(value, "name", value)).rpartition(".")[2]


def _anything(_value: Any, _given: Mapping[str, Any]) -> str:
    return ""


def _only(*allowed: Any) -> Check:
    def check(value: Any, _given: Mapping[str, Any]) -> str:
        return "" if value in allowed else f"only {' or '.join(map(repr, allowed))} is served"

    return check


def _nothing(what: str) -> Check:
    def check(value: Any, _given: Mapping[str, Any]) -> str:
        return "" if not value else f"{what} is not served"

    return check


def _heads(value: Any, _given: Mapping[str, Any]) -> str:
    return "" if value and min(value) > 0 else "each layer needs heads; hybrid models are not served"


def _head_size(value: Any, _given: Mapping[str, Any]) -> str:
    sizes = set(value) if isinstance(value, list | tuple) else {value}
    return "" if len(sizes) == 1 and min(sizes) > 0 else "one head size above 0 for all layers is served"


def _one_sequence(value: Any, given: Mapping[str, Any]) -> str:
    """A window holds the part of a prompt that is not known to be computed, and what that part looks back to."""
    vector = set(given["max_attention_window_vec"])
    if (vector != set(value) and not len(vector) == len(value) == 1) or min(*vector, *value) <= 0:
        return f"layers have the windows {sorted(vector)}"
    if not _slides(given):
        return ""
    longest, tokens, chunk = _longest(given), int(given["tokens_per_block"]), _chunk(given)
    needed = {size: held_most(size, chunk, longest, tokens) for size in value}
    small = {size: primary for size, (primary, _) in value.items() if primary < needed[size]}
    return f"a sequence of {longest} tokens needs up to {needed} blocks, and {small} are fewer" if small else ""


def _no_windows(what: str) -> Check:
    def check(value: Any, given: Mapping[str, Any]) -> str:
        return f"{what} over windows is not served" if value is not None and _slides(given) else ""

    return check


def _dtype(value: Any, _given: Mapping[str, Any]) -> str:
    return "" if named(value) in ELEMENTS else f"only {', '.join(ELEMENTS)} are served"


def _cache_type(value: Any, _given: Mapping[str, Any]) -> str:
    return "" if named(value) in ("SELF", "SELFKONLY") else "cross attention is not served"


def _same_pools(value: Any, given: Mapping[str, Any]) -> str:
    """An entry that repeats what holds for all pools is not another shape."""
    size, dtype = _one(_head_sizes(given)), given["dtype"]
    others = [each for each in value or () if (each.size_per_head, each.dtype) != (size, dtype)]
    return "pools of different shapes are not served" if others else ""


def _own_events(value: Any, _given: Mapping[str, Any]) -> str:
    known = value is None or isinstance(value, EventManager)
    return "" if known else f"{type(value).__name__} was made before ours could take its place"


def _onboards(value: Any, given: Mapping[str, Any]) -> str:
    has_host = any(host for _, host in given["blocks_per_window"].values())
    return "a host tier that is never read is not served" if has_host and not value else ""


CHECKS: Mapping[str, Check] = {
    "num_kv_heads_per_layer": _heads,
    "size_per_head": _head_size,
    "size_per_head_per_layer": _head_size,
    "tokens_per_block": _anything,
    "blocks_per_window": _one_sequence,
    "max_num_sequences": _anything,  # the table of offsets is upstream's
    "max_beam_width": _only(1),
    "max_attention_window_vec": _anything,
    "temp_attention_window_inputs": _anything,  # bounds what upstream's sliding windows hold
    "dtype": _dtype,
    "sink_token_length": _only(0),
    "stream": _anything,
    "max_sequence_length": _anything,
    "chunk_size": _anything,  # bounds what sliding windows hold
    "enable_block_reuse": _anything,
    "onboard_blocks": _onboards,
    "cache_type": _cache_type,
    "secondary_offload_min_priority": _anything,
    "event_manager": _own_events,
    "enable_partial_reuse": _anything,
    "copy_on_partial_reuse": _anything,
    "kv_connector_manager": _no_windows("a connector"),
    "enable_indexer_k_cache": _nothing("sparse attention"),
    "indexer_k_cache_quant_block_size": _anything,  # these matter if there is an indexer
    "indexer_k_cache_index_head_dim": _anything,
    "indexer_k_cache_use_fp4": _anything,
    "indexer_k_cache_layer_mask": _anything,
    "linear_attention_metadata": _nothing("linear attention"),
    "pool_configurations": _same_pools,
    "swa_context_reuse": _no_windows("a cyclic table of slots"),  # the builds that say so have one
}
NEEDED = (
    "num_kv_heads_per_layer", "tokens_per_block", "blocks_per_window", "max_attention_window_vec",
    "dtype", "stream", "max_sequence_length",
)  # fmt: skip


def layout_of(given: Mapping[str, Any]) -> CacheLayout:
    """Raises NotServed, which names the keyword."""
    _check(given)
    tokens = int(given["tokens_per_block"])
    vector = tuple(given["max_attention_window_vec"])
    windows = _windows_of(given)
    priority = given.get("secondary_offload_min_priority")
    return CacheLayout(
        tokens_per_block=tokens,
        windows=windows,
        window_vector=vector,
        blocks_per_sequence=-(-max(*vector, given["max_sequence_length"]) // tokens),
        pools=pools_of(
            windows,
            vector,
            given["num_kv_heads_per_layer"],
            tokens * _one(_head_sizes(given)),
            1 if named(given.get("cache_type", "SELF")) == "SELFKONLY" else 2,
            ELEMENTS[named(given["dtype"])],
        ),
        stream=given["stream"],
        reuse=given.get("enable_block_reuse", False),
        partial_reuse=given.get("enable_partial_reuse", True),
        copy_on_partial_reuse=given.get("copy_on_partial_reuse", True),
        offload_priority_min=OFFLOAD_PRIORITY_MIN if priority is None else priority,
        events=given.get("event_manager"),
        connector=given.get("kv_connector_manager"),
        # Builds that release blocks one by one no longer pass a temporary window.
        pins_by_list="temp_attention_window_inputs" not in given,
        chunk=_chunk(given),
    )


def _windows_of(given: Mapping[str, Any]) -> tuple[Window, ...]:
    slides = _slides(given)
    return tuple(
        Window(index, size, primary, host, size if slides else None)
        for index, (size, (primary, host)) in enumerate(sorted(given["blocks_per_window"].items()))
    )


def _slides(given: Mapping[str, Any]) -> bool:
    """Older builds show it by a temporary window. A single window that is only as long as the pool never slides."""
    vector = given["max_attention_window_vec"]
    if len(set(vector)) > 1:
        return True
    if "temp_attention_window_inputs" in given:
        return given["temp_attention_window_inputs"] is not None
    return bool(vector[0] < given["max_sequence_length"])


def _longest(given: Mapping[str, Any]) -> int:
    """If a pool is small, upstream shortens the largest window, and with it sequences, to what the pool holds."""
    largest: int = max(given["blocks_per_window"])
    holds: int = given["blocks_per_window"][largest][0] * int(given["tokens_per_block"])
    longest = int(given["max_sequence_length"])
    return largest if holds < longest and largest > holds - int(given["tokens_per_block"]) else max(longest, largest)


def _chunk(given: Mapping[str, Any]) -> int | None:
    """Tokens of a prompt in one step at most, where blocks leave a window before a sequence is complete."""
    if not _slides(given):
        return None
    temporary = given.get("temp_attention_window_inputs")
    chunk = given.get("chunk_size") or getattr(temporary, "max_num_tokens", None)
    return int(chunk) if chunk and 2 * chunk < _longest(given) else None


def _check(given: Mapping[str, Any]) -> None:
    missing = [name for name in NEEDED if name not in given]
    if missing or not {"size_per_head", "size_per_head_per_layer"} & set(given):
        raise NotServed(f"the V1 constructor of this build does not take {', '.join(missing) or 'size_per_head'}")
    for name, value in given.items():
        if name not in CHECKS:
            raise NotServed(f"{name}={value!r}: this build's constructor has a keyword that is not known here")
        objection = CHECKS[name](value, given)
        if objection:
            raise NotServed(f"{name}={value!r}: {objection}")


def _head_sizes(given: Mapping[str, Any]) -> Any:
    return given.get("size_per_head", given.get("size_per_head_per_layer"))


def _one(sizes: Any) -> int:
    return int(sizes[0] if isinstance(sizes, list | tuple) else sizes)
