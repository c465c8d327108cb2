"""With no overlay, a V1 table reaches attention with another step's blocks in it (hazard H1)."""

import pytest

from tests.fakes.fixture import upstream
from tests.fakes.serving import Server

RACY = ["B"]


@pytest.mark.parametrize("variant", RACY)
def test_overlap_corrupts_where_the_copies_are_held(variant: str) -> None:
    with upstream(variant):
        server = Server()
        with server.stall() as stall:
            server.serve(server.workload(24))
        steps = {corruption.step for corruption in server.witness.corrupt("block offsets")}
        # Whenever the next step has another batch; the first steps all do.
        assert len(steps) > stall.held / 2


@pytest.mark.parametrize("variant", RACY)
def test_without_overlap_nothing_is_corrupt(variant: str) -> None:
    with upstream(variant):
        server = Server({"disable_overlap_scheduler": True})
        with server.stall():
            server.serve(server.workload(24))
        assert server.witness.steps > 0
        assert server.witness.corruptions == []
