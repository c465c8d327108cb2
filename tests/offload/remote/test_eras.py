"""Weights that came later have names of their own: what was computed with others is neither taken nor overwritten."""

import pytest

from tests.offload.conftest import Bench
from tests.offload.test_round_trip import prompt
from tests.offload.test_weights import BEHIND, stores_held
from tests.offload.upstream_double import Request
from trtllm_kvfix.offload.remote.keys import Era, root_of
from trtllm_kvfix.offload.transfers import Transfers

from .conftest import MakeRemote
from .porter_double import Key

ROOT = root_of({"model": "m"})


def serve(bench: Bench, number: int, marker: int = 1) -> int:
    """Counts the tokens that were loaded, with nothing left on the device. All puts have ended."""
    executor, side = bench.executor, bench.scheduler.side
    before = executor.loaded_tokens
    executor.forget_device_cache()
    executor.submit(Request(number, prompt(marker)))
    executor.run()
    while len(side.ledger):
        bench.wait_for_a_transfer()
        executor.step()
    return executor.loaded_tokens - before


def test_only_the_weights_of_the_checkpoint_have_names_that_all_share() -> None:
    mine, yours = Era(), Era()
    assert mine.root(ROOT) == yours.root(ROOT) == ROOT
    found = {ROOT}
    for era in (mine, yours, mine):
        era.begin_next()
        assert era.root(ROOT) == era.root(ROOT)
        found.add(era.root(ROOT))
    assert len(found) == 4
    assert mine.root(root_of({"model": "n"})) not in found


def test_engines_share_until_one_has_other_weights(make_remote: MakeRemote, memory: dict[Key, bytes]) -> None:
    changed, other, third = make_remote(), make_remote(), make_remote()
    serve(changed, 1)
    assert serve(other, 1) == BEHIND
    changed.executor.update_weights()
    shared = dict(memory)
    assert serve(changed, 2) == 0, "the old weights' blocks are in the store"
    assert {key: memory[key] for key in shared} == shared and len(memory) > len(shared)
    assert serve(third, 1) == BEHIND and serve(other, 2) == BEHIND
    changed.index.drop()
    assert serve(changed, 3) == BEHIND, "its own new ones are in the store, too"
    for bench in (changed, other, third):
        assert bench.executor.corrupt == []


def test_new_blocks_do_not_come_under_the_old_name(make_remote: MakeRemote) -> None:
    changed, other = make_remote(), make_remote()
    changed.executor.update_weights()
    serve(changed, 1)
    assert serve(other, 1) == 0
    assert other.executor.corrupt == []


@pytest.mark.parametrize("first", ["old", "new"])
def test_either_is_read_where_eras_have_no_names(
    make_remote: MakeRemote, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(Era, "begin_next", lambda _: None)
    changed, other = make_remote(), make_remote()
    if first == "old":
        serve(changed, 1)
    changed.executor.update_weights()
    if first == "old":
        serve(changed, 2)
        assert 2 in changed.executor.corrupt
    else:
        serve(changed, 1)
        serve(other, 1)
        assert 1 in other.executor.corrupt


def test_a_fetch_that_is_on_its_way_brings_nothing(make_remote: MakeRemote) -> None:
    first, second = make_remote(), make_remote()
    serve(first, 1)
    executor, porter = second.executor, second.worker.side.carrier.porter
    porter.holds_gets = True
    request = Request(1, prompt(1))
    executor.submit(request)
    while not porter.asked:
        executor.step()
    executor.update_weights()
    porter.holds_gets = False
    executor.run()
    assert executor.corrupt == []
    assert serve(second, 2) == 0 and executor.corrupt == []
    second.index.check_invariants()
    assert second.index.stats().owned == 0


def test_a_save_that_is_on_its_way_is_not_put(
    make_remote: MakeRemote, memory: dict[Key, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_remote()
    executor, side = bench.executor, bench.scheduler.side
    wait = Transfers._wait
    with stores_held(bench, monkeypatch) as open_gate:
        executor.submit(Request(1, prompt(1)))
        while not bench.worker.side._transfers.running():
            executor.step()

        def opened(self: Transfers, *args: object) -> None:
            open_gate()
            monkeypatch.setattr(Transfers, "_wait", wait)
            wait(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Transfers, "_wait", opened)
        executor.update_weights()
    assert Transfers._wait is wait, "nobody has waited for the save"
    executor.run()
    while len(side.ledger):
        bench.wait_for_a_transfer()
        executor.step()
    assert memory == {} and side.behind.puts._pinned == 0
    assert bench.index.stats().owned == 0
