"""Names of blocks in a store that others share: what has the same name holds the same, on every node and for ever.

A block's key is a SHA-256 over its parent's and all that its contents follow from. The root stands for the weights, the
layout of a block and how ranks share it.
"""

import hashlib
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.offload_section import RemoteSettings

FORMAT = "trtllm-kvfix block 2"
KEY_BYTES = hashlib.sha256().digest_size
Spans: TypeAlias = tuple[tuple[int, int, bytes], ...]  # images: their first token, the one behind, their digest


def root_of(parts: Mapping[str, str]) -> bytes:
    """Return the root of all names. Every part counts, and none can be taken for another."""
    spelled = [FORMAT, *(text for name in sorted(parts) for text in (name, parts[name]))]
    return _digest(*(text.encode() for text in spelled))


def object_name(key: bytes, rank: int, ranks: int) -> str:
    """The name of the object that holds what one rank has of a block."""
    return f"kvfix/{key.hex()}/{rank}.{ranks}"


def start_of(root: bytes, identity: Identity) -> bytes:
    """What the names of all blocks of a sequence follow from."""
    salt = identity.salt.encode() if isinstance(identity.salt, str) else identity.salt
    kind = type(identity.salt).__name__  # 1 and "1" are two salts
    spelled = salt if isinstance(salt, bytes) else str(salt).encode()
    return _digest(root, str(identity.lora_id).encode(), kind.encode(), spelled)


def array_of(tokens: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
    """As names see tokens, on every machine."""
    return np.asarray(tokens, "<i4")


def keys_behind(
    parent: bytes, first: int, tokens: NDArray[np.int32], tokens_per_block: int, spans: Spans
) -> list[bytes]:
    """The keys of whole blocks: the first of them has this number, and follows the parent."""
    step, keys, content = 4 * tokens_per_block, list[bytes](), tokens.tobytes()
    plain = _lengths((bytes(KEY_BYTES), b"", bytes(step)))  # of every block that no image reaches into
    for at in range(0, len(content), step):
        extras = _extras(spans, (first + len(keys)) * tokens_per_block, tokens_per_block) if spans else b""
        block = content[at : at + step]
        parent = _digest(parent, extras, block) if extras else hashlib.sha256(plain + parent + block).digest()
        keys.append(parent)
    return keys


def _extras(spans: Spans, begin: int, tokens_per_block: int) -> bytes:
    """The extras of a block: images that reach into it, and where."""
    end = begin + tokens_per_block
    inside = [span for span in spans if span[0] < end and begin < span[1]]
    return b"".join(_digest(str(start).encode(), str(stop).encode(), digest) for start, stop, digest in inside)


class Given:
    """The keys of a prompt's blocks, one behind the other, once somebody else has made them. Until then none."""

    keys = b""


class KeyChain:
    """The keys of a sequence that grows. Each is made once: when it is asked for, unless it has been given by then."""

    def __init__(self, start: bytes, spans: Spans, tokens_per_block: int, given: Given | None = None) -> None:
        self._start, self._spans, self._tokens_per_block = start, spans, tokens_per_block
        self._given = given or Given()
        self._keys = bytearray()  # one behind the other: a long prompt has thousands
        self._tokens: list[int] = []  # of the blocks that have no key yet
        self._begin = 0  # the first of those blocks

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens of further whole blocks."""
        self._take_given()
        end = self._begin + len(tokens) // self._tokens_per_block
        if not self._tokens and end <= self._named:
            self._begin = end
            return
        self._tokens.extend(tokens)
        self._drop_named()

    def keys(self, first: int, end: int) -> tuple[bytes, ...]:
        self._take_given()
        if end > self._named and self._tokens:
            parent, tokens = bytes(self._keys[-KEY_BYTES:]) or self._start, array_of(self._tokens)
            self._keys += b"".join(keys_behind(parent, self._begin, tokens, self._tokens_per_block, self._spans))
            self._drop_named()
        places = range(KEY_BYTES * first, KEY_BYTES * min(end, self._named), KEY_BYTES)
        return tuple([bytes(self._keys[at : at + KEY_BYTES]) for at in places])

    @property
    def _named(self) -> int:
        return len(self._keys) // KEY_BYTES

    def _take_given(self) -> None:
        given = self._given.keys
        if len(given) > len(self._keys):
            self._keys[:] = given
        self._drop_named()

    def _drop_named(self) -> None:
        named = min(self._named - self._begin, len(self._tokens) // self._tokens_per_block)
        del self._tokens[: named * self._tokens_per_block]
        self._begin += named


def _digest(*parts: bytes) -> bytes:
    """Hash the parts behind their lengths, so that none can be taken for another."""
    return hashlib.sha256(_lengths(parts) + b"".join(parts)).digest()


def _lengths(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") for part in parts)


NAME_BYTES = 16


class Era:
    """The era of an engine's weights, which is a part of the names of its blocks.

    The names of a checkpoint's weights are those that all nodes share. Weights that came later have no name that two
    engines could agree on: nothing says whether another one was given the same. So each change begins an era under a
    name that nobody else has. What the engine puts from then on, it finds again, and nobody else does, until it starts
    anew.

    The scheduler side has it. Nothing of it reaches other ranks but the names of blocks.
    """

    def __init__(self) -> None:
        self._name = ""  # that of the checkpoint

    def begin_next(self) -> None:
        self._name = secrets.token_hex(NAME_BYTES)

    def root(self, checkpoint: bytes) -> bytes:
        """The beginning of the names of blocks. Those of the checkpoint's weights begin with `checkpoint`."""
        return root_of({"checkpoint": checkpoint.hex(), "era": self._name}) if self._name else checkpoint


# What the names of an engine's blocks say besides their tokens: its weights, the layout of a block, its arguments.
#
# All arguments count, but for those that are known not to matter. An argument that this table does not know,
# because upstream is newer, separates engines that differ in it. They share less than they could, which costs time.
# Blocks under a wrong name would cost answers.

# Why they do not change what a block holds, nor where in it.
IRRELEVANT = {
    "the name has the weights themselves, or the name that the operator gave them": ("model",),
    "the name has the tokens": (
        "tokenizer", "tokenizer_mode", "custom_tokenizer", "tokenizer_revision", "skip_tokenizer_init",
    ),
    "they choose tokens, or make text of them": (
        "batched_logits_processor", "disable_flashinfer_sampling", "enable_mixed_sampler", "enable_trtllm_sampler",
        "gather_generation_logits", "guided_decoding_backend", "max_beam_width", "mixed_sampler",
        "post_processor_hook", "postprocess_tokenizer_dir", "reasoning_parser", "sampler_force_async_worker",
        "sampler_type", "use_torch_sampler",
    ),
    "they say when something is computed, and together with what": (
        "attention_dp_config", "batch_wait_max_tokens_ratio", "batch_wait_timeout_iters", "batch_wait_timeout_ms",
        "disable_overlap_scheduler", "enable_chunked_prefill", "encoder_max_batch_size", "encoder_max_num_tokens",
        "max_batch_size", "max_input_len", "max_num_tokens", "reorder_policy_config", "scheduler_config",
    ),
    "they say how work is launched, or where": (
        "cuda_graph_config", "enable_early_first_token_response", "enable_low_latency_host_dispatch",
        "enable_speculative_beam_history_d2h", "garbage_collection_gen0_threshold", "gpus_per_node", "mpi_session",
        "num_postprocess_workers", "orchestrator_type", "ray_placement_config", "ray_worker_nsight_options",
        "stream_interval",
    ),
    "they manage memory, or move blocks": (
        "cache_transceiver_config", "connector_config", "enable_resource_governor", "extra_resource_managers",
        "kv_connector_config", "peft_cache_config", "sleep_config",
    ),
    "an extension that changes the weights begins an era of its own": ("ray_worker_extension_cls",),
    "the PyTorch backend builds no engine": ("build_config",),
    "they only look on": (
        "enable_energy_metrics", "enable_iter_perf_stats", "enable_iter_req_stats", "enable_layerwise_nvtx_marker",
        "iter_stats_max_iterations", "max_stats_len", "otlp_traces_endpoint", "perf_metrics_max_requests",
        "print_iter_log", "prometheus_metrics_config", "request_stats_max_iterations", "return_perf_metrics",
        "telemetry_config",
    ),
    "their own table has them": ("kv_cache_config",),
}  # fmt: skip
IRRELEVANT_OF_CACHE = {
    "they say how large the cache is, and what stays in it": (
        "avg_seq_len", "block_reuse_policy", "copy_on_partial_reuse", "cross_kv_cache_fraction", "disk_cache_path",
        "disk_cache_size", "disk_prefetch_num_reqs", "enable_block_reuse", "enable_kv_pool_rebalance",
        "enable_partial_reuse", "free_gpu_memory_fraction", "host_cache_size", "max_gpu_total_bytes", "max_tokens",
        "max_util_for_resume", "onboard_blocks", "pool_ratio", "secondary_offload_min_priority", "use_uvm",
    ),
    "they only look on": ("attention_dp_events_gather_period_ms", "event_buffer_max_size"),
}  # fmt: skip
UPSTREAM = "tensorrt_llm"
SAID_BY_REPR = ("builtins", "torch")  # such as torch.dtype


class Unnameable(KvfixError):
    """An argument holds an object, and nothing says whether that of another engine is the same."""


def arguments_of(llm_args: Any) -> dict[str, str]:
    """Each argument that counts, spelled alike wherever it has the same value."""
    cache = llm_args.kv_cache_config
    told = counting(llm_args, IRRELEVANT) | {"quant_config": getattr(llm_args, "quant_config", None)}
    told |= {f"kv_cache_config.{name}": value for name, value in counting(cache, IRRELEVANT_OF_CACHE).items()}
    return {name: spelled(value, name) for name, value in told.items() if value is not None}


def counting(arguments: Any, irrelevant: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    left_out = {name for names in irrelevant.values() for name in names}
    return {name: value for name, value in members(arguments) if name not in left_out}


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a pydantic model or a dataclass, or whatever an object has."""
    if hasattr(type(value), "model_fields"):
        names = list(type(value).model_fields)
    elif is_dataclass(value):
        names = [field.name for field in fields(value)]
    else:
        names = list(vars(value))
    return ((name, getattr(value, name)) for name in sorted(names))


def spelled(value: Any, at: str) -> str:
    """Raises Unnameable, with the argument's name, if the text would not say all."""
    if isinstance(value, Enum):
        return f"{name_of(type(value), at)}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, type):
        return name_of(value, at)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return spelled_items(value, at)
    return spelled_object(value, at)


def spelled_items(value: Any, at: str) -> str:
    if isinstance(value, Mapping):
        items = sorted((spelled(key, at), spelled(each, f"{at}[{key!r}]")) for key, each in value.items())
        return "{" + ", ".join(f"{key}: {each}" for key, each in items) + "}"
    parts = [spelled(each, at) for each in value]
    return f"[{', '.join(parts)}]" if isinstance(value, list | tuple) else f"{{{', '.join(sorted(parts))}}}"


def spelled_object(value: Any, at: str) -> str:
    """Spell an object. One of upstream's says by its class what it does, unless it was given an object of others."""
    kind = type(value)
    if hasattr(kind, "model_fields") or is_dataclass(value):
        parts = [f"{name}={spelled(each, f'{at}.{name}')}" for name, each in members(value)]
    elif kind.__module__ in SAID_BY_REPR and not hasattr(value, "__dict__") and " at 0x" not in repr(value):
        parts = [repr(value)]
    elif is_upstreams(kind) and hasattr(value, "__dict__"):
        parts = [
            f"{name}={name_of(type(each), at) if is_upstreams(type(each)) else spelled(each, f'{at}.{name}')}"
            for name, each in sorted(vars(value).items())
        ]  # fmt: skip
    else:
        raise Unnameable(
            f"{at} is an object of {kind.__module__}.{kind.__qualname__}, and nothing says whether that of another "
            "engine does the same"
        )
    return f"{name_of(kind, at)}({', '.join(parts)})"


def name_of(kind: type, at: str) -> str:
    if "<" in kind.__qualname__:
        raise Unnameable(f"{at} is of {kind.__module__}.{kind.__qualname__}, a class without a name of its own")
    return f"{kind.__module__}.{kind.__qualname__}"


def is_upstreams(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == UPSTREAM


WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
DIGEST_CHARS = (40, 64)  # of a git object, of a file in large file storage


def parts_of(llm_args: Any, settings: RemoteSettings) -> dict[str, str]:
    told = {
        "release": str(getattr(sys.modules.get("tensorrt_llm"), "__version__", None)),
        "model": settings.model or digest_of_checkpoint(getattr(llm_args, "model", None)),
    }
    return told | {f"argument {name}": text for name, text in arguments_of(llm_args).items()}


def layout_parts(kinds: Iterable[str], ranks: int) -> dict[str, str]:
    return {"layout": repr(list(kinds)), "ranks": str(ranks)}


def digest_of_checkpoint(model: Any) -> str:
    """The digest of a snapshot whose files link to contents that are named by their digests, as the Hugging Face hub
    keeps them.

    A path or a name alone would let two models share blocks as soon as somebody copies other weights there.
    """
    folder = Path(str(model))
    names = sorted(found_in(folder))
    if not names or not any(file.match(kind) for file, _ in names for kind in WEIGHTS):
        raise SettingsError(
            f"kvfix.offload.remote.model is not set, and {model!r} is not a snapshot whose files are named by their "
            "digests; write a name for these weights alone, the same on every node"
        )
    return hashlib.sha256(repr([(file.name, digest) for file, digest in names]).encode()).hexdigest()


def found_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Return weights and configuration with their digests; nothing if one of them is a plain file."""
    files = [file for kind in (*WEIGHTS, "*.json") for file in folder.glob(kind)] if folder.is_dir() else []
    digests = [file.resolve().name for file in files]
    if all(file.is_symlink() and is_digest(digest) for file, digest in zip(files, digests, strict=True)):
        yield from zip(files, digests, strict=True)


def is_digest(name: str) -> bool:
    return len(name) in DIGEST_CHARS and set(name) <= set("0123456789abcdef")
