"""Fetches and puts between a host pool and a store that answers when the test says so."""

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from tests.offload.conftest import Bench
from tests.offload.upstream_double import Request, State
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload import scheduler
from trtllm_kvfix.offload.ledger import Ended, PutJob
from trtllm_kvfix.offload.remote import scheduler as remote_scheduler
from trtllm_kvfix.offload.remote.messages import Put
from trtllm_kvfix.offload.remote.scheduler import FUSE
from trtllm_kvfix.offload.scheduler import PAUSE_S_MIN
from trtllm_kvfix.overlay import fuse

from .conftest import MakeRemote
from .porter_double import Key, PorterDouble

PROMPT = list(range(500, 548))
BEHIND = 44
STEPS_MAX = 2000


def submitted(bench: Bench, number: int, tokens: list[int] = PROMPT) -> Request:
    """Nothing is left on the device."""
    bench.executor.forget_device_cache()
    request = Request(number, list(tokens), max_new_tokens=2)
    bench.executor.submit(request)
    return request


def served(bench: Bench, number: int, tokens: list[int] = PROMPT) -> int:
    """Loaded tokens of a request, to its end."""
    before = bench.executor.loaded_tokens
    request = submitted(bench, number, tokens)
    bench.executor.run()
    assert request.state is State.GONE and bench.executor.corrupt == []
    return bench.executor.loaded_tokens - before


def settle(bench: Bench) -> None:
    """Waits until nothing is on its way; then nothing is kept of any request."""
    side = bench.scheduler.side
    for _ in range(STEPS_MAX):
        if len(side.ledger) == 0:
            break
        bench.executor.step()
        bench.executor.idle()
    assert len(side.ledger) == 0
    stats = bench.index.stats()
    bench.index.check_invariants()
    assert stats.owned == 0 and stats.sequences == len(side._live)


def stored(make_remote: MakeRemote) -> Any:
    """The answer, in a store that the next engine shares."""
    first = make_remote()
    request = submitted(first, 1)
    first.executor.run()
    settle(first)
    return request.tokens


def porter_of(bench: Bench) -> PorterDouble:
    porter: PorterDouble = bench.worker.side.carrier.porter
    return porter


def steps(bench: Bench, count: int = 20) -> None:
    for _ in range(count):
        bench.executor.step()
        bench.executor.idle()


def test_a_fetch_brings_what_was_put(make_remote: MakeRemote, memory: dict[Key, bytes]) -> None:
    stored(make_remote)
    assert len(memory) == 12
    second = make_remote()
    assert served(second, 1) == BEHIND
    settle(second)
    assert second.executor.reads_checked


def test_a_fetch_of_other_contents_is_read_as_such(make_remote: MakeRemote, memory: dict[Key, bytes]) -> None:
    """The control: the executor's comparison sees what the store has changed, where nobody checks it."""
    stored(make_remote)
    memory.update({key: bytes(len(content)) for key, content in memory.items()})
    second = make_remote()
    submitted(second, 1)
    second.executor.run()
    assert second.executor.corrupt


def test_a_request_waits_for_its_fetch_and_others_run(make_remote: MakeRemote) -> None:
    stored(make_remote)
    bench = make_remote()
    porter_of(bench).holds_gets = True
    waits = submitted(bench, 1)
    steps(bench)
    other = Request(2, [1, 2, 3], max_new_tokens=2)
    bench.executor.submit(other)
    steps(bench)
    assert [waits.state, other.state] == [State.LOADING, State.GONE]
    porter_of(bench).holds_gets = False
    bench.executor.run()
    assert [one.state for one in bench.executor.done] == [State.GONE] * 2 and bench.executor.corrupt == []
    settle(bench)


def late(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every fetch take too long from now on."""
    now = monotonic()
    monkeypatch.setattr(remote_scheduler, "monotonic", lambda: now + 1000)
    steps(bench)


def test_a_late_fetch_leaves_its_request_computing(make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = stored(make_remote)
    bench = make_remote()
    porter_of(bench).holds_gets = True
    request = submitted(bench, 1)
    steps(bench)
    recomputed = counters.offload_recomputed_requests.value
    late(bench, monkeypatch)
    bench.executor.step()
    # Its slots are the store's until the answer, and the request is done without them.
    for _ in range(STEPS_MAX):
        if request.state is not State.LOADING:
            break
        bench.executor.step()
    assert bench.index.stats().owned >= 11
    assert counters.offload_recomputed_requests.value == recomputed + 1
    porter_of(bench).holds_gets = False
    bench.executor.run()
    assert request.tokens == answer and bench.executor.corrupt == []
    settle(bench)
    assert served(bench, 2) == BEHIND  # what came late is in the host pool


@pytest.mark.parametrize("error", ["", "the process has ended"])
def test_a_cancelled_request_leaves_nothing_behind(make_remote: MakeRemote, error: str) -> None:
    stored(make_remote)
    bench = make_remote()
    porter, hits = porter_of(bench), counters.offload_remote_hit_tokens.value
    porter.holds_gets = True
    request = submitted(bench, 1)
    steps(bench)
    bench.executor.cancel(request)
    other = submitted(bench, 2, list(range(40)))  # takes its blocks on the device
    steps(bench)
    porter.answer(porter.asked[0], error)
    porter.holds_gets = False
    bench.executor.run()
    assert other.state is State.GONE and bench.executor.corrupt == []
    settle(bench)
    assert bench.worker.side._loading == {} and bench.manager.pending_async_requests.loading == {}
    assert counters.offload_remote_hit_tokens.value == hits, "nobody has used what it fetched"


@pytest.mark.parametrize("waits", [False, True])
def test_a_promise_whose_request_ends_without_a_word_holds_nothing(make_remote: MakeRemote, waits: bool) -> None:
    """Put off and cancelled behind a query; or, where asking is a promise, ended as there is no block for it: then
    upstream's manager takes it for one that loads."""
    stored(make_remote)
    bench = make_remote()
    bench.worker.start_load_kv(bench.executor.stream)  # there has been a batch
    request, freed = Request(1, list(PROMPT)), list[Request]()
    bench.scheduler.side.hold_back([request], [request])
    ask = bench.manager if waits else bench.scheduler
    ask.get_num_new_matched_tokens(request, 0)
    assert bench.index.stats().owned == 11
    manager = SimpleNamespace(free_resources=freed.append)
    assert bench.worker.kept.keeps(bench.manager, manager, request) is waits
    settle(bench)
    steps(bench, 3)
    assert freed == [request] * waits
    assert (bench.scheduler.side._live, bench.worker.side._loading) == ({}, {})


def test_a_failed_fetch_leaves_its_request_computing(make_remote: MakeRemote, memory: dict[Key, bytes]) -> None:
    answer = stored(make_remote)
    bench = make_remote()
    porter_of(bench).holds_gets = True
    request = submitted(bench, 1)
    steps(bench)
    memory.pop(list(memory)[5])
    porter_of(bench).holds_gets = False
    bench.executor.run()
    assert request.tokens == answer and bench.executor.corrupt == []
    settle(bench)


@pytest.mark.parametrize("at", [0, 1, 5, 10])
@pytest.mark.parametrize("why", ["gone", "bad"])
def test_the_blocks_in_front_of_the_first_that_does_not_come_are_used(
    make_remote: MakeRemote, memory: dict[Key, bytes], at: int, why: str
) -> None:
    answer = stored(make_remote)
    bench, porter = (made := make_remote()), porter_of(made)
    bad, come = counters.offload_remote_bad_blocks.value, counters.offload_remote_hit_tokens.value
    porter.holds_gets = True
    request = submitted(bench, 1)
    steps(bench)
    key = list(memory)[at]
    if why == "bad":
        porter.bad.add(key)
    else:
        del memory[key]
    porter.holds_gets = False
    bench.executor.run()
    assert request.tokens == answer and bench.executor.corrupt == []
    assert counters.offload_remote_hit_tokens.value - come == 4 * at
    assert counters.offload_remote_bad_blocks.value - bad == (why == "bad")
    settle(bench)
    assert len(memory) == 12, "it is put again, by whoever has computed it"
    third = make_remote()
    assert served(third, 2) == BEHIND
    settle(third)


def test_a_fetch_whose_slots_were_dropped_meanwhile_takes_nothing_of_others(
    make_remote: MakeRemote, memory: dict[Key, bytes]
) -> None:
    """The same prefix is stored into other slots while it is fetched. A block of the fetch is bad, and none of those
    is."""
    stored(make_remote)
    bench = make_remote()
    porter = porter_of(bench)
    porter.holds_gets = True
    fetching = submitted(bench, 1)
    steps(bench)
    bench.index.drop()
    porter.bad.add(list(memory)[3])
    porter.is_up = False  # so that this one computes
    other = submitted(bench, 2, [*PROMPT[:24], 9, 9])
    steps(bench, STEPS_MAX)
    assert (fetching.state, other.state) == (State.LOADING, State.GONE)
    porter.holds_gets, porter.is_up = False, True
    bench.executor.run()
    settle(bench)
    assert fetching.state is State.GONE and bench.executor.corrupt == []
    assert served(bench, 3, [*PROMPT[:24], 9, 9]) == 24


@pytest.mark.parametrize("condemned", [False, True])
def test_a_load_has_no_gap_behind_a_block_that_was_found_bad(make_remote: MakeRemote, condemned: bool) -> None:
    """Block 4 of the host tier is bad, so those before it are loaded and those behind all that is there are fetched.
    Meanwhile the tier is emptied, and somebody else stores the whole prompt."""
    stored(make_remote)
    bench = make_remote()
    served(bench, 1, PROMPT[:33])
    settle(bench)
    sequence = bench.index.open()
    bench.index.extend(sequence, PROMPT[:32])
    if condemned:
        bad = bench.index.pin(sequence, 4, 5)
        bench.index.condemn(bad)
        bench.index.unpin(bad)
    bench.index.close(sequence)
    porter = porter_of(bench)
    porter.holds_gets = True
    waits = submitted(bench, 2)
    steps(bench, 3)
    bench.index.drop()
    porter.is_up = False
    other = submitted(bench, 3)
    steps(bench, 60)
    assert other.state is State.GONE
    porter.holds_gets, porter.is_up = False, True
    bench.executor.run()
    assert waits.state is State.GONE and bench.executor.corrupt == []
    settle(bench)


def test_loads_that_were_given_up_come_back_by_a_fetch_too(
    make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix is in the store alone, and many requests have nothing to load."""
    stored(make_remote)
    bench, now = make_remote(), [1000.0]
    monkeypatch.setattr(scheduler, "monotonic", lambda: now[0])
    directions = bench.scheduler.side._directions
    for _ in range(scheduler.FAILED_IN_A_ROW_MAX):
        directions.note_end("load", Ended(1, "broken"))
    assert served(bench, 1) == 0
    now[0] += PAUSE_S_MIN
    for number in range(2, 6):
        assert served(bench, number, list(range(7000 * number, 7000 * number + 12))) == 0
    bench.index.drop()
    assert served(bench, 7) == BEHIND
    assert directions.work("load")
    settle(bench)


def test_a_store_that_fails_at_each_fetch_is_left_alone_for_a_while(
    make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "PAUSE_S_MIN", 600.0)  # no pause ends in this test
    stored(make_remote)
    bench = make_remote()
    porter = porter_of(bench)
    porter.fails_gets = True
    for number in range(1, 12):
        assert bench.executor.corrupt == []
        served(bench, number)
        bench.index.drop()
    assert porter.looks == remote_scheduler.FAILURES_MIN


def test_digests_are_those_of_what_a_fetch_has_brought(make_remote: MakeRemote) -> None:
    """Slots that have had others: a host tier of few, and several prompts that go round."""
    prompts = [list(range(1000 * number, 1000 * number + 24)) for number in range(1, 7)]
    first = make_remote()
    for number, prompt in enumerate(prompts):
        served(first, number, prompt)
        settle(first)
    bench, bad = make_remote(24, verify="all"), counters.offload_bad_blocks.value
    loaded = [served(bench, number, prompt) for number, prompt in enumerate(prompts * 2)]
    settle(bench)
    assert min(loaded) == 20, "all but the block with the last token"
    assert counters.offload_bad_blocks.value == bad


def test_all_puts_of_a_busy_engine_are_on_their_way(make_remote: MakeRemote) -> None:
    """The porter has a queue; each of many requests fills a block now and then."""
    bench = make_remote()
    porter_of(bench).holds_puts = True
    for number in range(1, 4):
        bench.executor.submit(Request(number, [number] * 12, max_new_tokens=24))
    bench.executor.run()
    waiting = list(bench.scheduler.side.ledger.waiting(PutJob))
    asked = [message for message in porter_of(bench).asked if isinstance(message, Put)]
    assert waiting == [] and len(asked) > 3
    assert {message.is_prompt for message in asked} == {True, False}
    porter_of(bench).holds_puts = False
    settle(bench)


def test_an_engine_that_has_become_idle_has_handed_on_all_that_it_stored(
    make_remote: MakeRemote, memory: dict[Key, bytes]
) -> None:
    """Upstream's loop sleeps once its requests have ended, and no iteration follows."""
    bench = make_remote()
    submitted(bench, 1)
    bench.executor.run()
    assert sum(len(each.keys) for each in porter_of(bench).asked) + len(memory) == 12


def test_answers_leave_room_for_prompts(make_remote: MakeRemote) -> None:
    bench = make_remote(64)
    porter_of(bench).holds_puts = True
    bench.executor.submit(Request(1, [1] * 4, max_new_tokens=60))
    bench.executor.run()
    share = bench.index.slots // 4
    assert bench.scheduler.side.behind.puts._pinned == share // 2
    served(bench, 2, list(range(900, 924)))
    assert bench.scheduler.side.behind.puts._pinned == share // 2 + 6
    porter_of(bench).holds_puts = False
    settle(bench)


def test_a_part_of_the_prefix_is_in_the_host_pool(make_remote: MakeRemote) -> None:
    stored(make_remote)
    bench = make_remote()
    assert served(bench, 1, [*PROMPT[:20], 1]) == 20
    settle(bench)
    gets = counters.offload_remote_fetched_blocks.value
    assert served(bench, 2) == BEHIND
    assert counters.offload_remote_fetched_blocks.value == gets + 6
    settle(bench)


def test_short_prefixes_are_not_asked_for(make_remote: MakeRemote) -> None:
    stored(make_remote)
    bench = make_remote(remote_min_reuse_blocks=12)
    assert served(bench, 1) == 0
    assert porter_of(bench).looks == 0


def test_puts_wait_in_a_bounded_part_of_the_pool(make_remote: MakeRemote, memory: dict[Key, bytes]) -> None:
    bench = make_remote(32)
    porter_of(bench).holds_puts = True
    dropped = counters.offload_remote_dropped_blocks.value
    for number in range(1, 6):
        served(bench, number, list(range(1000 * number, 1000 * number + 24)))
        steps(bench)
    waiting = bench.scheduler.side.ledger.slots_of(PutJob)
    assert bench.index.slots == 28 and bench.index.stats().owned == 7, "a quarter of the host tier"
    assert waiting in range(7, 7 + 4 + 1), "and what is kept for blocks that it does not take"
    assert counters.offload_remote_dropped_blocks.value > dropped
    porter_of(bench).holds_puts = False
    settle(bench)
    assert len(memory) == waiting


def test_adapters_stay_on_their_node(make_remote: MakeRemote, memory: dict[Key, bytes]) -> None:
    """Their numbers may mean others elsewhere, unless the settings say that they do not."""
    for shared, blocks in ((False, 0), (True, 12)):
        bench = make_remote(remote_shared_adapters=shared)
        request = Request(1, list(PROMPT), max_new_tokens=2, lora_task_id=3)
        bench.executor.submit(request)
        bench.executor.run()
        settle(bench)
        assert len(memory) == blocks


def test_a_fault_of_ours_means_computing(make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(make_remote)
    bench = make_remote()

    def breaks() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(fuse, "_fuses", {})
    porter_of(bench).on_look = breaks
    for number in range(1, 6):
        assert served(bench, number) == 0
        bench.index.drop()
        settle(bench)
    assert fuse.of(FUSE).blown and porter_of(bench).looks == fuse.IN_A_ROW_MAX
