"""Block offsets in the stand-in's loop: corrupt without the fix, right with it, corrupt again when it is taken back.

The stall holds the device in front of every step's copies until the host has prepared the next step.
"""

from typing import Any

import pytest

from tests.fakes.serving import Server
from tests.manager.applied import applied, standing_in

V1 = ["A", "B", "C"]
V2 = ["B", "C"]  # later variants wait for the input copies: see test_late_rows


def corrupt_steps(llm_args: dict[str, Any] | None = None) -> int:
    server = Server(llm_args or {})
    with server.stall() as stall:
        server.serve(server.workload(24))
    assert stall.held > 0
    return len({corruption.step for corruption in server.witness.corrupt("block offsets")})


def off_on_off(variant: str, fix_id: str, llm_args: dict[str, Any] | None = None) -> None:
    with standing_in(variant):
        assert corrupt_steps(llm_args) > 0
        with applied([fix_id]):
            assert corrupt_steps(llm_args) == 0
        assert corrupt_steps(llm_args) > 0


@pytest.mark.parametrize("variant", V1)
def test_v1_offsets_are_staged(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v1")


@pytest.mark.parametrize("variant", V1)
def test_v1_offsets_are_staged_with_beams(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v1", {"max_beam_width": 2})


@pytest.mark.parametrize("variant", V1)
def test_v1_offsets_are_staged_where_autodeploy_builds_the_manager(variant: str) -> None:
    off_on_off(variant, "staged-offsets-v1", {"backend": "_autodeploy"})
