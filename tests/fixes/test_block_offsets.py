"""Block offsets in the stand-in's loop: corrupt without the fix, right with it, corrupt again when it is taken back.

The stall holds the device in front of every step's copies until the host has prepared the next step.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixes.applied import applied, standing_in
from tests.standin.serving import Server
from trtllm_kvfix.fixes.input_copy_fence import fix as fence_fix
from trtllm_kvfix.fixes.staged_offsets_v1 import destination
from trtllm_kvfix.fixes.staged_offsets_v1.destination import StagedDestination
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import OffsetStager
from trtllm_kvfix.staging import stagers
from trtllm_kvfix.staging.place import stream_for

REQUESTS = 24
V1 = ["A", "B", "B2", "C"]
V2 = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}
PER_LAYER = {"kv_cache_config": {"use_kv_cache_manager_v2": True, "enable_swa_scratch_reuse": True}}
WITH_DRAFT: dict[str, Any] = {"speculative_config": {}}

Arm = Callable[[], int]


def corrupt_steps(llm_args: dict[str, Any], *, beams: int = 1, draft: bool = False) -> int:
    server = Server(llm_args)
    config = server.requests.SamplingConfig(beam_width=beams)
    requests = [
        server.request(each.request_id, each.input_tokens, each.max_new_tokens, sampling_config=config)
        for each in server.workload(REQUESTS)
    ]
    with server.stall(draft=draft) as stall:
        server.serve(requests)
    assert stall.held > 0
    witness = server.draft_witness if draft else server.witness
    assert witness is not None
    return len({corruption.step for corruption in witness.corrupt("block offsets")})


def off_on_off(variant: str, fix_id: str, arm: Arm) -> None:
    with standing_in(variant):
        assert arm() > 0
        before = counters.read()["staged_shipments"]
        with applied([fix_id]):
            assert arm() == 0
            assert counters.read()["staged_shipments"] > before or fix_id == "input-copy-fence"
        assert arm() > 0


@pytest.mark.parametrize("variant", V1)
def test_v1_offsets_are_staged(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v1", lambda: corrupt_steps({}))


@pytest.mark.parametrize("variant", V1)
def test_v1_offsets_are_staged_with_beams(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v1", lambda: corrupt_steps({"max_beam_width": 2}, beams=2))


@pytest.mark.parametrize("variant", ["B", "C"])  # its engine calls the manager's method
def test_v1_offsets_are_staged_where_autodeploy_builds_the_manager(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v1", lambda: corrupt_steps({"backend": "_autodeploy"}))


@pytest.mark.parametrize("variant", V1)
def test_v1_offsets_of_a_draft_model_are_staged(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v1", lambda: corrupt_steps(WITH_DRAFT, draft=True))


@pytest.mark.parametrize("variant", ["B", "C"])
def test_v2_offsets_are_staged(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v2", lambda: corrupt_steps(V2))


@pytest.mark.parametrize("variant", ["D", "F"])
@pytest.mark.parametrize("llm_args", [V2, PER_LAYER], ids=["kernel", "per layer"])
def test_v2_offsets_of_a_draft_model_are_staged_although_upstream_fences(
    variant: str, llm_args: dict[str, Any]
) -> None:
    """Upstream waits for the target's engine only."""

    def arm() -> int:
        return corrupt_steps({**llm_args, **WITH_DRAFT}, draft=True)

    with standing_in(variant):
        assert arm() > 0
        with applied(["staged-offsets-v2"]):
            assert arm() == 0
        assert arm() > 0


@pytest.mark.parametrize("variant", ["C", "D", "F"])
@pytest.mark.parametrize("manager", [{}, V2], ids=["V1", "V2"])
def test_the_fence_protects_input_preparation_in_the_pipeline_loop(variant: str, manager: dict[str, Any]) -> None:
    """Upstream's own stands in the overlap loop alone."""

    def corrupt_lengths() -> int:
        server = Server({**manager, "pipeline_parallel_size": 2})
        with server.stall():
            server.serve(server.workload(REQUESTS))
        return len(server.witness.corrupt("prompt lens"))

    with standing_in(variant):
        assert corrupt_lengths() > 0
        before = counters.read()["fence_waits"]
        with applied(["input-copy-fence"]):
            assert corrupt_lengths() == 0
        assert counters.read()["fence_waits"] > before
        assert corrupt_lengths() > 0


@pytest.mark.parametrize("variant", ["A", "B", "C"])
@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
def test_the_fence_alone_protects_every_buffer_of_input_preparation(variant: str, draft: bool) -> None:
    """Prompt lengths stand for the buffers that nobody has mended at their source."""

    def corrupt_lengths() -> int:
        server = Server(WITH_DRAFT)
        with server.stall(draft=draft):
            server.serve(server.workload(REQUESTS))
        witness = server.draft_witness if draft else server.witness
        assert witness is not None
        return len(witness.corrupt("prompt lens"))

    with standing_in(variant):
        assert corrupt_lengths() > 0
        before = counters.read()
        with applied(["input-copy-fence"]):
            assert corrupt_lengths() == 0
        after = counters.read()
        assert after["fence_waits"] > before["fence_waits"]
        assert corrupt_lengths() > 0


@pytest.mark.parametrize("variant", ["B", "B2", "C"])
def test_the_fence_covers_what_is_written_later_in_the_same_iteration(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V2's rows: those of requests that end are overwritten when the last batch is processed, behind this step's copy.
    A wait at the head of the next scheduling step is too late for that."""

    def corrupt() -> int:
        server = Server(V2)
        with server.stall():
            server.serve(server.workload(REQUESTS))
        return len(server.witness.corruptions)

    with standing_in(variant):
        with applied(["input-copy-fence"]) as registry:
            assert corrupt() == 0
            assert registry.report().of("input-copy-fence").faults == 0
        monkeypatch.setattr(fence_fix, "ALSO_WRITING", ())
        with applied(["input-copy-fence"]):
            assert corrupt() > 0


@pytest.mark.parametrize("variant", V1)
def test_the_table_keeps_its_identity_and_is_filled_in_place(variant: str) -> None:
    """Others read it on the CPU, some through an alias taken once."""
    with standing_in(variant), applied(["staged-offsets-v1"]):
        server = Server({})
        server.run(server.workload(1))
        metadata = server.executor.model_engine.attn_metadata
        owner = metadata if variant == "A" else server.manager
        table, destination = owner.host_kv_cache_block_offsets, metadata.kv_cache_block_offsets
        table.numpy()[...] = -5
        server.run([server.request(50, list(range(9)))])
        assert owner.host_kv_cache_block_offsets is table and metadata.kv_cache_block_offsets is destination
        assert (table.numpy()[:, 0, :, 0] != -5).all()
        assert metadata.host_kv_cache_block_offsets is table
        server.close()


@pytest.mark.parametrize("variant", V1)
def test_tables_of_more_pools_than_a_stager_takes_are_safe_too(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(variant), applied(["staged-offsets-v1"]):
        monkeypatch.setattr(stagers, "POOLS_MAX", 0)
        before = counters.read()["staged_shipments"]
        assert corrupt_steps({}) == 0
        assert counters.read()["staged_shipments"] == before


def test_the_limit_is_the_stagers_own() -> None:
    def stager(pools: int) -> OffsetStager:
        return OffsetStager(layout="v1", num_pools=pools, rows_max=1, blocks_max=1, device="cpu")

    stager(stagers.POOLS_MAX).close()
    with pytest.raises(ValueError, match="num_pools"):
        stager(stagers.POOLS_MAX + 1)


def test_a_table_that_was_lent_is_settled_before_it_is_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interleaving that corrupts needs a copy engine that is busy, so the order of calls is looked at."""
    order: list[str] = []

    def noting(what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            order.append(what)
            return method(*args, **kwargs)

        return noted

    # A shipment asks for its stream.
    monkeypatch.setattr(destination, "stream_for", lambda tensor: noting("ship", stream_for(tensor)))
    monkeypatch.setattr(StagedDestination, "begin", noting("begin", StagedDestination.begin))
    with standing_in("C"), applied(["staged-offsets-v1"]):
        server = Server({})
        bound = type(server.manager.impl)
        monkeypatch.setattr(bound, "copy_batch_block_offsets", noting("fill", bound.copy_batch_block_offsets))
        server.serve(server.workload(3))
    steps = "-".join(order).split("begin")
    assert len(steps) > 3 and steps[0] == ""
    assert all(step.strip("-").replace("fill-", "") == "ship" for step in steps[1:]), steps
