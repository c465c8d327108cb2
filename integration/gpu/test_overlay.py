"""Needs a CUDA GPU, torch, pydantic, and tests/ beside integration/.

The stand-in's executor loop on CUDA with torch's tensors and streams, overlap and a host tier. The device is held in
front of every step's copies, or of its graph, until the host has prepared the next step: corrupt without the overlay,
and with it not once in 10,000 iterations.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pydantic", reason="needs pydantic, for the settings")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from tests.executor.test_graph_inputs import LORA, for_graphs  # noqa: E402  not there where the module is skipped
from tests.standin.fixture import upstream  # noqa: E402
from tests.standin.serving import Server  # noqa: E402
from trtllm_kvfix.fix_ids import FIX_IDS  # noqa: E402
from trtllm_kvfix.fixes import ALL  # noqa: E402
from trtllm_kvfix.overlay.registry import Registry  # noqa: E402
from trtllm_kvfix.overlay.upstream import Upstream  # noqa: E402
from trtllm_kvfix.sections import FixChoices, Settings  # noqa: E402

ITERATIONS = 10_000
CONTROL_ITERATIONS = 300
REQUESTS_AT_A_TIME = 100
HOST_TIER = {"max_tokens": 192, "host_cache_size": 32 * 64}
V2 = {"kv_cache_config": {**HOST_TIER, "use_kv_cache_manager_v2": True}}
PER_LAYER = {"kv_cache_config": {**V2["kv_cache_config"], "enable_swa_scratch_reuse": True}}
DRAFT: dict[str, Any] = {"speculative_config": {}}

# Variant, arguments, the fix that stages, and whether the draft's copies are held: later builds fence the target's.
STAGED = [
    pytest.param("A", {"kv_cache_config": HOST_TIER}, "staged-offsets-v1", False, id="A-v1"),
    pytest.param("B", {"kv_cache_config": HOST_TIER}, "staged-offsets-v1", False, id="B-v1"),
    pytest.param("C", {"kv_cache_config": HOST_TIER}, "staged-offsets-v1", False, id="C-v1"),
    pytest.param("B", V2, "staged-offsets-v2", False, id="B-v2"),
    pytest.param("C", V2, "staged-offsets-v2", False, id="C-v2"),
    pytest.param("D", {**V2, **DRAFT}, "staged-offsets-v2", True, id="D-v2-draft"),
    pytest.param("F", {**V2, **DRAFT}, "staged-offsets-v2", True, id="F-v2-draft"),
    pytest.param("F", {**PER_LAYER, **DRAFT}, "staged-offsets-v2", True, id="F-per-layer-draft"),
]
FENCED = ["A", "B", "C"]
GRAPHS = ["D", "F"]


@contextmanager
def standing_in(variant: str) -> Iterator[None]:
    with upstream(variant, "torch"):
        import_module("tensorrt_llm._torch.pyexecutor.py_executor_creator")
        yield


@contextmanager
def applied(fix_id: str | None) -> Iterator[None]:
    """Applies that fix alone; None applies all that are needed."""
    chosen = FixChoices.model_validate({name: "on" if name == fix_id else "off" for name in FIX_IDS})
    registry = Registry(ALL)
    registry.apply(Settings() if fix_id is None else Settings(fixes=chosen), Upstream(), at_last=True)
    try:
        yield
    finally:
        assert registry.revert() == []


def traffic(server: Server) -> Iterator[list[Any]]:
    """Batches of requests for ever; no prompt begins as another does, so that no reuse is expected that may go."""
    number = 0
    while True:
        yield [
            server.request(made.request_id + number, [number, made.request_id, *made.input_tokens], made.max_new_tokens)
            for made in server.workload(REQUESTS_AT_A_TIME, seed=number)
        ]
        number += REQUESTS_AT_A_TIME


def graph_traffic(server: Server) -> Iterator[list[Any]]:
    return (for_graphs(server, requests) for requests in traffic(server))


def corruptions(
    llm_args: dict[str, Any], iterations: int, *, draft: bool = False, graphs: bool = False
) -> tuple[int, int, Counter[str]]:
    """Steps that ran, steps of which attention or a graph saw anything wrong, and in how many what was wrong."""
    gc.collect()  # giving memory back waits for held streams; loading kernels does too, hence the warm-up
    server = Server(llm_args)
    witness = server.draft_witness if draft else server.witness
    assert witness is not None
    batches = graph_traffic(server) if graphs else traffic(server)
    server.run(next(batches))
    with server.stall(draft=draft, replay=graphs):
        while witness.steps < iterations:
            server.run(next(batches))
    server.close()
    wrong = {(corruption.what, corruption.step) for corruption in witness.corruptions}
    return witness.steps, len({step for _, step in wrong}), Counter(what for what, _ in wrong)


@pytest.mark.parametrize(("variant", "llm_args", "fix_id", "draft"), STAGED)
def test_staged_offsets_are_never_corrupt(variant: str, llm_args: dict[str, Any], fix_id: str, draft: bool) -> None:
    with standing_in(variant):
        _, corrupt, what = corruptions(llm_args, CONTROL_ITERATIONS, draft=draft)
        assert corrupt > 0 and "block offsets" in what
        with applied(fix_id):
            steps, _, what = corruptions(llm_args, ITERATIONS, draft=draft)
        assert steps >= ITERATIONS and "block offsets" not in what
        _, _, what = corruptions(llm_args, CONTROL_ITERATIONS, draft=draft)
        assert "block offsets" in what


@pytest.mark.parametrize("variant", FENCED)
def test_with_everything_on_no_buffer_is_corrupt(variant: str) -> None:
    llm_args = {"kv_cache_config": HOST_TIER}
    with standing_in(variant):
        _, corrupt, what = corruptions(llm_args, CONTROL_ITERATIONS)
        assert corrupt > 0 and what.keys() == {"block offsets", "prompt lens"}
        with applied(None):
            steps, corrupt, what = corruptions(llm_args, ITERATIONS)
        assert steps >= ITERATIONS and (corrupt, what) == (0, {})


@pytest.mark.parametrize("variant", GRAPHS)
def test_what_a_real_graph_reads_is_never_another_steps(variant: str) -> None:
    """torch captures the copies."""
    llm_args = {**LORA, "kv_cache_config": HOST_TIER}
    with standing_in(variant):
        _, corrupt, what = corruptions(llm_args, CONTROL_ITERATIONS, graphs=True)
        assert corrupt > 0 and what.keys() == {"lora slots", "lora weights"}
        with applied("graph-inputs"):
            steps, corrupt, what = corruptions(llm_args, ITERATIONS, graphs=True)
        assert steps >= ITERATIONS and (corrupt, what) == (0, {})
        _, corrupt, _ = corruptions(llm_args, CONTROL_ITERATIONS, graphs=True)
        assert corrupt > 0
