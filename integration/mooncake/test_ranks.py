"""Two ranks of one model, each with a part of every block: what not all of them have, none of them has."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.mooncake.engines import PREFIX
from integration.mooncake.nodes import MOONCAKE, Master, Node
from integration.mooncake.rank_part import Found, serves
from tests.offload.rank_processes import run_ranks
from trtllm_kvfix.offload.remote.keys import object_name

BEHIND = 44
RANKS = 2
Run = Callable[[], list[Found]]
TAMPER = Path(__file__).with_name("tamper.py")


@pytest.fixture
def run(master: Master, node: Node, monkeypatch: pytest.MonkeyPatch) -> Run:
    settings = {"kind": "mooncake", "master": master.address, "model": "m", "min_reuse_blocks": "2"}
    for name, value in (settings | {"lookup_wait_ms": "1000"}).items():
        monkeypatch.setenv(f"{PREFIX}REMOTE_{name.upper()}", value)
    del node

    def run_once() -> list[Found]:
        found: list[Found] = run_ranks("cpu", RANKS, [serves])[0]
        assert all(not corrupt and reads for _, _, corrupt, reads, _ in found)
        return found

    return run_once


def test_both_ranks_load_their_parts(run: Run) -> None:
    computed, loaded = run(), run()
    assert [each[0] for each in computed] == [0, 0]
    assert [each[0] for each in loaded] == [BEHIND, BEHIND]
    assert {tuple(each[1]) for each in (*computed, *loaded)} == {tuple(computed[0][1])}


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_block_of_one_rank_alone_counts_for_none(run: Run, master: Master, lacking: int) -> None:
    keys = run()[0][4]
    name = object_name(keys[6], lacking, RANKS)
    where = f"{MOONCAKE} {master.address} 127.0.0.1:{master.metrics_port}"
    assert os.system(f"{sys.executable} {TAMPER} {where} remove {name} >/dev/null 2>&1") == 0
    assert [each[0] for each in run()] == [6 * 4, 6 * 4]
