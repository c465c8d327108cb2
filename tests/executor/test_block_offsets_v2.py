"""With no overlay, V2's kernel gathers rows that belong to others by then (hazard H2)."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.standin.fixture import upstream
from tests.standin.serving import Server

ALL = ["B", "B2", "C", "D", "F"]
FENCED = ["D", "F"]
REQUESTS = 24
V2 = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}
PER_LAYER = {"kv_cache_config": {"use_kv_cache_manager_v2": True, "enable_swa_scratch_reuse": True}}


@pytest.mark.parametrize("variant", ["B", "B2", "C"])
def test_overlap_corrupts_where_the_kernels_are_held(variant: str) -> None:
    with upstream(variant):
        server = Server(V2)
        with server.stall() as stall:
            server.serve(server.workload(REQUESTS))
        steps = {corruption.step for corruption in server.witness.corrupt("block offsets")}
        assert len(steps) > stall.held / 2


@pytest.mark.parametrize("variant", ALL)
def test_without_overlap_nothing_is_corrupt(variant: str) -> None:
    with upstream(variant):
        server = Server({**V2, "disable_overlap_scheduler": True})
        with server.stall():
            server.serve(server.workload(REQUESTS))
        assert server.witness.steps > 0
        assert server.witness.corruptions == []


@pytest.mark.parametrize("variant", FENCED)
@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "fence taken away"])
def test_a_target_alone_is_right_by_upstreams_fence(variant: str, fenced: bool) -> None:
    with upstream(variant):
        server = Server(V2)
        executor = import_module("tensorrt_llm._torch.pyexecutor.py_executor").PyExecutor
        wait = executor._wait_for_model_engine_input_copy if fenced else lambda _: None
        with mock.patch.object(executor, "_wait_for_model_engine_input_copy", wait), server.stall() as stall:
            server.serve(server.workload(REQUESTS))
        assert stall.held > 0
        assert (server.witness.corrupt("block offsets") != []) == (not fenced)


@pytest.mark.parametrize("variant", FENCED)
@pytest.mark.parametrize("arguments", [V2, PER_LAYER], ids=["kernel", "per layer"])
def test_upstreams_fence_covers_the_target_and_not_the_draft(variant: str, arguments: dict[str, Any]) -> None:
    with upstream(variant):
        server = Server({**arguments, "speculative_config": {}})
        with server.stall(draft=True) as stall:
            server.serve(server.workload(REQUESTS))
        assert server.witness.corruptions == []
        assert server.draft_witness is not None
        steps = {corruption.step for corruption in server.draft_witness.corrupt("block offsets")}
        assert len(steps) > stall.held / 2


class Bench:
    """A V2 manager alone, its stream held, and two destinations."""

    def __init__(self, llm_args: dict[str, Any]) -> None:
        self.server = Server(llm_args)
        self.manager = self.server.manager
        self.tensors = self.server.tensors
        self.stream = self.manager._stream
        pools = getattr(self.manager, "num_attention_op_pools", self.manager.num_pools)
        shape = (pools, 4, 2, self.manager.max_blocks_per_seq)
        self.destinations = [self.tensors.on_device(*shape) for _ in range(2)]

    def add(self, request_id: int, length: int) -> Any:
        request = self.server.request(request_id, [1000 * request_id + i for i in range(length)])
        self.manager.prepare_context(request)
        return request

    def ship(self, which: int, request_ids: list[int]) -> np.ndarray[Any, Any]:
        """Returns what should arrive."""
        with self.tensors.on(self.stream):
            at = (request_ids, 1, len(request_ids), len(request_ids))
            self.manager.copy_batch_block_offsets(self.destinations[which], *at)
        expected: np.ndarray[Any, Any] = self.manager.standin_truth(request_ids, [1] * len(request_ids))
        return expected

    def two_calls_while_held(self) -> tuple[bool, bool]:
        """Two batches of two of the requests 0 to 3. Returns whether each arrives as it was at its call."""
        gate = self.tensors.close_gate(self.stream)
        first, second = self.ship(0, [0, 1]), self.ship(1, [2, 3])
        self.tensors.open_gate(gate)
        return self.arrived(0, first), self.arrived(1, second)

    def arrived(self, which: int, expected: np.ndarray[Any, Any]) -> bool:
        host = self.tensors.pinned(*self.destinations[which].shape)
        with self.tensors.on(self.stream):
            host.copy_(self.destinations[which])
        seen = host.numpy()[:, : expected.shape[1]]
        return bool((seen == expected)[expected != -1].all())


@pytest.fixture(params=[(v, a) for v in ALL for a in ([V2, PER_LAYER] if v in FENCED else [V2])], ids=str)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    variant, llm_args = request.param
    with upstream(variant):
        made = Bench(llm_args)
        yield made
        made.server.close()


def test_a_second_call_overwrites_the_copy_index(bench: Bench) -> None:
    """Both batches stay alive, so nothing else can be to blame."""
    for request_id in range(4):
        bench.add(request_id, 9 + request_id)
    assert bench.two_calls_while_held() == (False, True)


def test_a_freed_row_is_bound_to_another_request(bench: Bench) -> None:
    ended = bench.add(0, 13)
    bench.add(1, 9)
    gate = bench.tensors.close_gate(bench.stream)
    expected = bench.ship(0, [0, 1])
    bench.manager.free_resources(ended)
    newcomer = bench.add(2, 11)
    bench.tensors.open_gate(gate)
    assert bench.manager.index_mapper.get_index(newcomer.request_id) == 0, (
        "the lowest free row goes to the next request"
    )
    assert not bench.arrived(0, expected)
    assert bench.arrived(0, bench.manager.standin_truth([2], [1])), "attention was given the newcomer's pages"


@pytest.mark.parametrize("variant", FENCED)
def test_scratch_staging_is_overwritten_too(variant: str) -> None:
    with upstream(variant):
        bench = Bench(PER_LAYER)
        for request_id in range(2):
            bench.add(request_id, 9)
        gate = bench.tensors.close_gate(bench.stream)
        bench.ship(0, [0])
        with bench.tensors.on(bench.stream):
            seen = bench.tensors.pinned(*bench.manager._device_scratch_begs_staging.shape)
            seen.copy_(bench.manager._device_scratch_begs_staging, non_blocking=True)
        bench.ship(1, [1])
        bench.tensors.open_gate(gate)
        bench.stream.synchronize()
        assert seen.numpy()[0, 0] == bench.manager.kv_cache_map[1].get_scratch_desc(0)[0]
        bench.server.close()


def test_newest_mapper_gathers_on_the_cpu_and_leaves_the_copy_index_alone() -> None:
    with upstream("F"):
        utils = import_module("tensorrt_llm.bindings.internal.batch_manager.kv_cache_manager_v2_utils")
        bench = Bench(V2)
        for request_id in range(3):
            bench.add(request_id, 9 + request_id)
        manager = bench.manager
        assert isinstance(manager.index_mapper, utils.IndexMapper)
        copy_index = manager.index_mapper.get_copy_index([2], 1, 1)
        gathered = bench.tensors.pinned(manager.num_pools, 2, 2, manager.max_blocks_per_seq)
        manager.index_mapper.gather_k_block_offsets(manager.host_kv_cache_block_offsets, gathered, [0, 2], 3)
        table = manager.host_kv_cache_block_offsets.numpy()
        np.testing.assert_array_equal(gathered.numpy()[:, :, 0, :3], table[:, [0, 2], 0, :3])
        assert copy_index.tolist() == [2]
        bench.server.close()
