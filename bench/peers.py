"""Other managers in the same process, where their drivers are at hand.

A folder of drivers holds `harness.py` with `run_once(peer, trace, block_size)`, `trace.py` with `get(name)`, and
modules with a table PEERS of constructors, or with one constructor `make`. None is needed; which of them load is found
out by trying, because vLLM and SGLang have many ways not to import.
"""

import contextlib
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# driver module, name in its table, our name for it
ONE_TIER = (
    ("bench_vllm", "vllm", "vLLM, sha256"),
    ("bench_vllm", "vllm_xxhash", "vLLM, xxhash"),
    ("bench_sglang", "sgl_unified_rust", "SGLang"),
    ("bench_sglang", "sgl_unified_rust_tree", "SGLang, tree only"),
)
TWO_TIERS = (
    ("bench_vllm_twotier", "vllm_simple", "vLLM, host offload"),
    ("bench_sglang_twotier", "sgl_hicache_rust", "SGLang, HiCache"),
)


class PeerCosts(NamedTuple):
    admit_us: float  # per request, as the peer's driver defines it
    finish_us: float
    step_us: float | None  # per token


class Peer(NamedTuple):
    name: str
    run: Callable[[str, int], PeerCosts]  # workload, block size


def load_peers(folder: Path | None, workload: str) -> list[Peer]:
    """The peers that can run this workload here; one that cannot be imported is named with the reason and left out."""
    if folder is None:
        return []
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # before the standard library, which has a module `trace` too
        sys.modules.pop("trace", None)
    found = [_peer(*driver) for driver in (TWO_TIERS if workload == "W5" else ONE_TIER)]
    return [peer for peer in found if peer is not None]


def _peer(module_name: str, key: str, name: str) -> Peer | None:
    try:
        return Peer(name, _Runner(_constructor(importlib.import_module(module_name), key)()))
    except Exception as error:  # in whatever way a peer fails to import, the others can still be measured
        print(f"{name} is left out: {type(error).__name__}: {error}")
        return None


def _constructor(module: Any, key: str) -> Callable[[], Any]:
    constructor: Callable[[], Any] = module.PEERS[key] if hasattr(module, "PEERS") else module.make
    return constructor


class _Runner:
    def __init__(self, peer: Any) -> None:
        self._peer = peer

    def __call__(self, workload: str, block_size: int) -> PeerCosts:
        harness, trace = importlib.import_module("harness"), importlib.import_module("trace")
        if hasattr(self._peer, "hash_fn"):  # vLLM keeps the hash of "no parent" in a global
            importlib.import_module("vllm.v1.core.kv_cache_utils").init_none_hash(self._peer.hash_fn)
        with contextlib.redirect_stderr(io.StringIO()):
            result = harness.run_once(self._peer, trace.get("W3" if workload == "W5" else workload), block_size)
        return PeerCosts(result["admit_us_per_req"], result["finish_us_per_req"], result["decode_us_per_tok"])
