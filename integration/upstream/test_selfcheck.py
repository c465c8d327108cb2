"""The scenarios of `trtllm-kvfix selfcheck` on upstream's own Python: its constructors take what selfcheck gives them.

Bound classes, the device and the arithmetic of memory are the rig's, and so is the constructor of the V1 manager in C
and D, which no excerpt holds or which wants bindings that nobody has read.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from integration.upstream import cuda, graph_tables, graphs, late, parts, provided  # noqa: E402  they need torch
from integration.upstream.loading import EXECUTOR  # noqa: E402
from integration.upstream.server import upstream  # noqa: E402
from trtllm_kvfix.hazards import build, small  # noqa: E402
from trtllm_kvfix.hazards.ground import Ground  # noqa: E402
from trtllm_kvfix.overlay.upstream import Upstream  # noqa: E402
from trtllm_kvfix.tools.selfcheck import report, steps  # noqa: E402
from trtllm_kvfix.tools.selfcheck.steps import SCENARIOS, StepOutcome  # noqa: E402

TREES = os.environ.get("KVFIX_UPSTREAM")
TIMEOUT_S = 60
# The eras whose trees have a scenario's classes. V2's runtime is not here; no tree has pins of other threads or NIXL.
NEEDED = {
    "offsets-v1": "A S B2 C",
    "chunks-shared": "S B2 C D",
    "partial-copies": "S B2",
    "admission-order": "S B2",
    "budget": "C D",
    "inputs": "S B2 C",
    "graph-tables": "N",
}
FIXED = {"offsets-v1": "D", "partial-copies": "C D", "admission-order": "C D"}
CASES = [
    (era, name, state)
    for state, eras_by_name in (("needed", NEEDED), ("fixed-upstream", FIXED))
    for name, eras in eras_by_name.items()
    for era in eras.split()
]


class Seen:
    """The rig has no copy for memory that the host reads. Here it lies on the device, which is the host's."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._tensor = torch.zeros(shape, dtype=torch.int32, device="cuda")

    def copy_(self, source: Any, non_blocking: bool = False) -> None:
        self._tensor.copy_(source, non_blocking=non_blocking)

    def numpy(self) -> Any:
        return late.plain(self._tensor).numpy()


class LateGround(Ground):
    def __init__(self, device: late.LateDevice) -> None:
        self._late = device

    def stream(self) -> Any:
        return cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return cuda.stream(stream)

    def on_device(self, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=torch.int32, device="cuda")

    def pinned(self, shape: tuple[int, ...]) -> Any:
        return Seen(shape)

    def lengths(self, values: list[int]) -> Any:
        return torch.tensor(values, dtype=torch.int)

    def read(self, target: Any, source: Any) -> None:
        graphs.read(target, source)

    @contextmanager
    def held(self, stream: Any) -> Iterator[None]:
        """Holds the device until somebody waits, which the scenario does after its block."""
        del stream
        self._late.hold()
        yield


OURS = {"chunked": False, "kv_connector_manager": None, "max_num_tokens": 8192, "max_beam_width": 1}


def _seen_by_metadata(metadata: Any) -> None:
    """Upstream's base works these out of the lengths; the rig's gets them from its engines."""
    metadata.num_seqs, metadata.seq_lens_kv = len(metadata.seq_lens), metadata.seq_lens


def _complete_runner() -> None:
    """The excerpt of it lacks this."""
    runner = sys.modules[f"{EXECUTOR}.cuda_graph_runner"]
    vars(runner)["KeyType"] = graph_tables.GraphKey
    vars(runner)["CUDAGraphRunner"].WARMUP_STEPS = 1


@contextmanager
def rig(root: Path, era: str) -> Iterator[late.LateDevice]:
    """Memory is not looked at: a manager has as many blocks as its configuration asks for."""
    with upstream(root, era) as (tree, device, _logger):
        resources: Any = sys.modules[f"{EXECUTOR}.resource_manager"]
        bound: Any = sys.modules["tensorrt_llm.bindings.internal.batch_manager"]
        if f"{EXECUTOR}.cuda_graph_runner" in sys.modules:
            _complete_runner()
        import_module("tensorrt_llm._torch.metadata")
        vars(sys.modules[f"{EXECUTOR}.llm_request"])[
            "LlmRequest"
        ].py_beam_width = 1  # the excerpt is older than its use
        blocks: list[tuple[int, int]] = []

        def config(*, tokens_per_block: int, max_tokens: int, enable_block_reuse: bool, **more: Any) -> Any:
            host_cache_size = more.get("host_cache_size", 0)
            blocks.append((max_tokens // tokens_per_block, 1 if host_cache_size else 0))  # no scenario wants more
            return provided.KvCacheConfig(
                enable_block_reuse=enable_block_reuse, max_attention_window=None, host_cache_size=host_cache_size
            )

        def calculate_max_num_blocks(*_: Any, **__: Any) -> tuple[int, int]:
            return blocks[-1]

        def sampling_config(*_: Any) -> Any:
            return bound.SamplingConfig(1)

        is_ours = "__init__" in tree.lacking["KVCacheManager"]
        made = resources.KVCacheManager.__init__

        def init(manager: Any, config: Any, kind: Any, **given: Any) -> None:
            """The rig's constructor, where the tree has none that works here."""
            windows = {given["max_seq_len"]: blocks[-1]}
            given["num_kv_heads"] = [given["num_kv_heads"]] * given["num_layers"]
            made(manager, config, kind, **OURS | {"bound": bound.KVCacheManager, "blocks_per_window": windows} | given)
            manager.num_attention_op_pools = manager.num_pools

        with (
            mock.patch.object(resources.KVCacheManager, "__init__", init if is_ours else made),
            mock.patch.object(resources.KVCacheManager, "calculate_max_num_blocks", calculate_max_num_blocks),
            mock.patch.object(resources, "SamplingConfig", sampling_config),
            mock.patch.object(parts.AttentionMetadata, "__post_init__", _seen_by_metadata),
            mock.patch.object(parts.SamplingParams, "_get_sampling_config", sampling_config),
            mock.patch.object(build, "imported", Upstream),
            mock.patch.object(small, "_config", config),
        ):
            yield device


def _child(send: Any, root: Path, era: str, name: str) -> None:
    outcomes: dict[str, StepOutcome] = {}
    with rig(root, era) as device:
        for arm in steps.ARMS:
            outcomes[f"{name}:{arm}"] = steps.take(f"{name}:{arm}", lambda: LateGround(device))
        scenario = next(each for each in SCENARIOS if each.name == name)
        state = steps.state_of(scenario.fix_id, Upstream()).value
    send.send((state, report.judged(scenario, state, outcomes)))


@pytest.mark.skipif(TREES is None, reason="needs KVFIX_UPSTREAM: a folder with trees of excerpts")
@pytest.mark.parametrize(("era", "name", "state"), CASES)
def test_scenario_holds_on_upstreams_own_classes(era: str, name: str, state: str) -> None:
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, Path(str(TREES)) / "trees" / era, era, name))
    child.start()
    send.close()
    assert receive.poll(TIMEOUT_S), "nothing came"
    found, (verdict, why) = receive.recv()
    child.join()
    assert (found, verdict) == (state, "holds"), why
