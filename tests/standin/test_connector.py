"""Connectors and the remote host tier of the stand-in (surface 6, 7.3)."""

from importlib import import_module

import pytest

from tests.standin.admissions import SHARED_LEAF, leave_a_leaf
from tests.standin.connector_double import CONFIG
from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_connector_hears_of_every_request_and_every_step(variant: str) -> None:
    with upstream(variant):
        server = Server({"kv_connector_config": CONFIG})
        requests = server.workload(6)
        server.serve(requests)
        scheduler = server.executor.kv_connector_manager.scheduler
        assert sorted(scheduler.allocated) == sorted(scheduler.finished) == list(range(6))
        new = [data.request_id for output in scheduler.outputs for data in output.new_requests]
        assert sorted(new) == list(range(6))
        assert len(scheduler.outputs) == server.witness.steps


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_connector_hears_of_every_layer_of_every_step(variant: str) -> None:
    """It hears before and after each, on the stream of the step; its own callable comes behind them all."""
    with upstream(variant):
        server = Server({"kv_connector_config": CONFIG, "num_layers": 3})
        server.serve(server.workload(2))
        worker = server.executor.kv_connector_manager.worker
        assert worker.passes == server.witness.steps > 2
        one = [(what, layer) for layer in range(3) for what in ("load", "save")]
        told = [(what, number) for what, number, _ in worker.layers]
        assert told == [each for step in range(worker.passes) for each in [*one, ("pass", step + 1)]]
        streams = {stream for what, _, stream in worker.layers if what != "pass"}
        assert len(streams) == 1
        if variant != "A":
            assert streams == {server.executor.execution_stream.cuda_stream}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pool_has_upstreams_shape(variant: str) -> None:
    """Blocks, layers, keys and values, and what one layer keeps of a block."""
    with upstream(variant):
        server = Server({"kv_connector_config": CONFIG, "num_layers": 3, "kv_cache_config": {"max_tokens": 40}})
        assert server.executor.kv_connector_manager.worker.pool.shape == (10, 3, 2, 4)
        server.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_report_has_hashes_where_the_build_makes_them(variant: str) -> None:
    with upstream(variant):
        server = Server({"kv_connector_config": CONFIG})
        server.serve([server.request(1, list(range(10)), 4)])
        told = [data for output in server.executor.kv_connector_manager.scheduler.outputs
                for data in output.new_requests + output.cached_requests]  # fmt: skip
        assert len(told) > 2
        if variant in {"A", "B", "B2", "C"}:
            assert not hasattr(told[0], "block_hashes")
        else:
            assert [len(data.block_hashes) for data in told[:4]] == [2, 2, 2, 3]
            assert told[3].block_hashes[:2] == told[0].block_hashes and told[0].priorities is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_connector_loads_is_not_computed(variant: str) -> None:
    """The bound manager asks it from inside the allocation (surface 4.4)."""
    with upstream(variant):
        server = Server({"kv_connector_config": CONFIG, "max_num_tokens": 20})
        server.executor.kv_connector_manager.scheduler.matched = 8
        (request,) = server.workload(1)
        server.serve([request])
        assert request.prepopulated_prompt_len == min(8, request.prompt_len - 1)


@pytest.mark.parametrize(("variant", "tokens"), [("C", 22), ("D", 20)])
def test_the_connector_is_told_before_or_after_the_batch_is_trimmed(variant: str, tokens: int) -> None:
    """D trims first (surface 1.8); before that the connector believes in a batch that does not run."""
    with upstream(variant):
        server = Server({**SHARED_LEAF, "enable_chunked_prefill": True, "kv_connector_config": CONFIG})
        server.run(leave_a_leaf(server))
        server.executor.shutdown()
        outputs = server.executor.kv_connector_manager.scheduler.outputs
        both = next(output for output in outputs if len(output.new_requests) == 2)
        told = sum(data.num_scheduled_tokens for data in both.new_requests)
        assert told >= tokens if variant == "C" else told <= tokens


def test_v2_falls_back_to_v1_with_a_connector() -> None:
    with upstream("D"):
        server = Server({"kv_connector_config": CONFIG, "kv_cache_config": {"use_kv_cache_manager_v2": True}})
        assert type(server.manager).__name__ == "KVCacheManager"
        server.close()


def test_the_remote_service_calls_the_bound_manager_from_a_thread_of_its_own() -> None:
    with upstream("C"):
        setup = import_module("tensorrt_llm._torch.pyexecutor.connectors.remote_g2_source_setup")
        server = Server()
        (request,) = server.workload(1)
        server.run([request])
        impl = server.manager.impl
        hashes = impl.commit_and_get_block_hashes_for_request(request, impl.window)
        service = setup.maybe_start_remote_g2_service(server.manager)
        leased = service.resolve_and_lease(hashes, impl.window).result(timeout=60)
        assert leased
        assert all(answer["pinned"] for answer in leased)
        service.release([answer["block_id"] for answer in leased]).result(timeout=60)
        assert impl.pin_counts == {}
        with pytest.raises(RuntimeError, match="is not pinned"):
            service.release([leased[0]["block_id"]]).result(timeout=60)
        service.stop()
        server.close()
