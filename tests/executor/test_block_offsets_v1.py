"""With no overlay, a V1 table reaches attention with another step's blocks in it (hazard H1)."""

import pytest

from tests.standin.fixture import upstream
from tests.standin.serving import Server

RACY = ["A", "B", "B2", "C"]
STAGED_UPSTREAM = ["D", "F"]
REQUESTS = 24


def corrupt_steps(server: Server, what: str) -> set[int]:
    return {corruption.step for corruption in server.witness.corrupt(what)}


@pytest.mark.parametrize("variant", RACY)
@pytest.mark.parametrize("host_blocks", [0, 32])
def test_overlap_corrupts_where_the_copies_are_held(variant: str, host_blocks: int) -> None:
    cache = {"max_tokens": 192, "host_cache_size": host_blocks * 64}
    with upstream(variant):
        server = Server({"kv_cache_config": cache})
        with server.stall() as stall:
            server.serve(server.workload(REQUESTS))
        # A step is spared only if the next has the same batch.
        assert len(corrupt_steps(server, "block offsets")) > stall.held / 2


@pytest.mark.parametrize("variant", RACY)
def test_without_overlap_nothing_is_corrupt(variant: str) -> None:
    with upstream(variant):
        server = Server({"disable_overlap_scheduler": True})
        with server.stall():
            server.serve(server.workload(REQUESTS))
        assert server.witness.steps > 0
        assert server.witness.corruptions == []


@pytest.mark.parametrize("variant", RACY)
def test_beams_are_corrupted_too(variant: str) -> None:
    with upstream(variant):
        server = Server({"max_beam_width": 2})
        beams = [
            server.request(r.request_id, r.input_tokens, r.max_new_tokens, sampling_config=two(server))
            for r in server.workload(REQUESTS)
        ]
        with server.stall():
            server.serve(beams)
        assert corrupt_steps(server, "block offsets")


def two(server: Server) -> object:
    return server.requests.SamplingConfig(beam_width=2)


@pytest.mark.parametrize("variant", STAGED_UPSTREAM)
def test_later_builds_ship_a_fresh_copy_and_leave_the_other_buffers_racy(variant: str) -> None:
    """AutoDeploy's engine has no fence, so the staging alone is what helps."""
    with upstream(variant):
        server = Server({"backend": "_autodeploy"})
        with server.stall() as stall:
            server.serve(server.workload(REQUESTS))
        assert corrupt_steps(server, "block offsets") == set()
        assert len(corrupt_steps(server, "prompt lens")) > stall.held / 2


@pytest.mark.parametrize("variant", STAGED_UPSTREAM)
def test_upstreams_fence_covers_the_target_and_not_the_draft(variant: str) -> None:
    with upstream(variant):
        server = Server({"speculative_config": {}})
        with server.stall():
            server.serve(server.workload(REQUESTS))
        assert server.witness.corruptions == []

    with upstream(variant):
        server = Server({"speculative_config": {}})
        with server.stall(draft=True):
            server.serve(server.workload(REQUESTS))
        assert server.witness.corruptions == []
        assert server.draft_witness is not None
        assert server.draft_witness.corrupt("prompt lens")


@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_earlier_builds_have_no_fence(variant: str) -> None:
    with upstream(variant):
        server = Server()
        with server.stall() as stall:
            server.serve(server.workload(REQUESTS))
        assert len(corrupt_steps(server, "prompt lens")) > stall.held / 2
