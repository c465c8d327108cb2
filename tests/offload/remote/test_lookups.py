"""Requests wait for the store's answer before they are scheduled, and the executor's thread never does."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.ranks import Between, RankComm, on_ranks
from tests.offload.conftest import Bench, Clock
from tests.offload.upstream_double import Request, State
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Link
from trtllm_kvfix.offload.remote import keys as module_of_keys
from trtllm_kvfix.offload.remote import scheduler as module
from trtllm_kvfix.offload.remote import scheduler as remote_scheduler
from trtllm_kvfix.offload.remote.keys import array_of
from trtllm_kvfix.offload.remote.messages import Look, LookAnswer
from trtllm_kvfix.offload.remote.scheduler import OBJECT_S, HeldBack, Lookups
from trtllm_kvfix.ranks import MpiRanks, OneRank

from .conftest import MakeRemote
from .porter_double import Key, PorterDouble
from .test_decisions import BEHIND, PROMPT, porter_of, served, settle, steps, stored, submitted

WAIT_S = 0.1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for each in (module, remote_scheduler):
        monkeypatch.setattr(each, "monotonic", made)
    return made


@pytest.fixture
def bench(make_remote: MakeRemote) -> Bench:
    """Its prompts are in the store, which says nothing."""
    stored(make_remote)
    made = make_remote(remote_lookup_wait_ms=1000 * WAIT_S)
    porter_of(made).holds_looks = True
    return made


def lookups_of(bench: Bench) -> Lookups:
    found: Lookups = bench.scheduler.side.behind.lookups
    return found


def test_a_request_waits_for_the_answer_and_others_run(bench: Bench, clock: Clock) -> None:
    del clock
    waits = submitted(bench, 1)
    steps(bench, 5)
    other = Request(2, [1, 2, 3], max_new_tokens=2)
    bench.executor.submit(other)
    steps(bench)
    assert [waits.state, other.state] == [State.WAITING, State.GONE]
    assert bench.executor.active == [] and bench.index.stats().owned == 0, "it has no blocks meanwhile"
    loaded = bench.executor.loaded_tokens
    porter_of(bench).holds_looks = False
    bench.executor.run()
    assert bench.executor.loaded_tokens == loaded + BEHIND and bench.executor.corrupt == []
    settle(bench)


def test_a_request_whose_patience_is_over_computes(bench: Bench, clock: Clock) -> None:
    unanswered = counters.offload_remote_unanswered.value
    request = submitted(bench, 1)
    steps(bench, 5)
    waited = request.state
    clock.now += WAIT_S + 12 * OBJECT_S
    bench.executor.run()
    assert [waited, request.state] == [State.WAITING, State.GONE] and bench.executor.loaded_tokens == 0
    assert counters.offload_remote_unanswered.value == unanswered + 1
    porter_of(bench).holds_looks = False
    assert served(bench, 2, [1, 2, 3]) == 0, "the late answer does no harm"
    settle(bench)
    assert len(lookups_of(bench)) == 0 and not lookups_of(bench)._asked


def test_no_number_of_slow_lookups_turns_the_tier_off(bench: Bench, clock: Clock) -> None:
    for number in range(1, 7):
        request = submitted(bench, number, [number, *PROMPT])
        steps(bench, 3)
        assert request.state is State.WAITING
        clock.now += 1
        bench.executor.run()
    porter_of(bench).holds_looks = False
    assert served(bench, 9) == BEHIND
    settle(bench)


def test_nobody_waits_for_a_store_that_has_stopped_answering(bench: Bench) -> None:
    porter = porter_of(bench)
    submitted(bench, 1)
    steps(bench, 3)
    porter.silent_s = 1e9
    asked = porter.looks
    assert served(bench, 2) == 0 and porter.looks == asked
    porter.holds_looks = False
    bench.executor.run()
    bench.index.drop()
    assert served(bench, 3) == BEHIND, "until it answers again"
    settle(bench)


def test_nobody_waits_for_what_the_host_tier_has(bench: Bench) -> None:
    """It is asked about all the same: what nobody asks about is what a store forgets."""
    porter = porter_of(bench)
    porter.holds_looks = False
    served(bench, 1)
    settle(bench)
    porter.holds_looks = True
    request = submitted(bench, 2)
    bench.executor.step()
    assert request.state is State.LOADING and porter.looking[0].held == 11
    bench.executor.run()
    porter.holds_looks = False
    settle(bench)


@pytest.mark.parametrize("how", ["the porter ends", "the porter is down"])
def test_nobody_waits_for_a_porter_that_is_gone(bench: Bench, how: str, clock: Clock) -> None:
    del clock
    porter = porter_of(bench)
    if how == "the porter is down":
        porter.is_up = False
    request = submitted(bench, 1)
    steps(bench, 3)
    if how == "the porter ends":
        assert request.state is State.WAITING
        porter.found.extend(LookAnswer(look.number, error="it has ended") for look in porter.looking)
        porter.looking.clear()
    bench.executor.run()
    assert request.state is State.GONE and bench.executor.loaded_tokens == 0
    settle(bench)


def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing_behind(bench: Bench, clock: Clock) -> None:
    del clock
    request = submitted(bench, 1)
    steps(bench, 3)
    bench.executor.cancel(request)
    porter_of(bench).holds_looks = False
    assert served(bench, 2, [7, *PROMPT]) == 0
    assert len(lookups_of(bench)) == 1, "that of the second one"
    assert served(bench, 1) == BEHIND, "another one under its number"
    settle(bench)


def test_what_was_asked_about_old_weights_is_asked_anew(bench: Bench, clock: Clock, memory: dict[Key, bytes]) -> None:
    del clock
    porter, old = porter_of(bench), len(memory)
    request = submitted(bench, 1)
    steps(bench, 3)
    bench.executor.update_weights()
    porter.holds_looks = False
    bench.executor.run()
    assert porter.looks == 2 and bench.executor.loaded_tokens == 0
    assert request.state is State.GONE and bench.executor.corrupt == []
    settle(bench)
    assert len(memory) == 2 * old


def test_prompts_of_one_iteration_are_bounded_by_their_tokens(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading tokens takes the executor's time. Whoever is not asked about yet waits as well."""
    del clock
    monkeypatch.setattr(remote_scheduler, "ASKED_TOKENS_MAX", 3 * len(PROMPT))
    requests = [Request(number, [*PROMPT[:-1], number], max_new_tokens=2) for number in range(1, 9)]
    bench.executor.submit(*requests)
    looks = []
    for _ in range(3):
        bench.executor.step()
        looks.append(porter_of(bench).looks)
    assert looks == [3, 6, 8] and bench.executor.active == []
    porter_of(bench).holds_looks = False
    bench.executor.run()
    assert bench.executor.corrupt == []
    settle(bench)


def test_names_are_made_once_by_the_porter(
    bench: Bench, make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine names what is generated, and nothing of a prompt: neither to fetch it nor to put it."""
    named: list[int] = []

    def keys_behind(parent: bytes, first: int, tokens: Any, *rest: Any) -> list[bytes]:
        named.append(first)
        return made(parent, first, tokens, *rest)

    made = module_of_keys.keys_behind
    monkeypatch.setattr(module_of_keys, "keys_behind", keys_behind)
    porter_of(bench).holds_looks = False
    assert served(bench, 1) == BEHIND
    settle(bench)
    other = [3, *PROMPT[1:]]
    assert served(bench, 2, other) == 0
    settle(bench)
    assert min(named, default=11) >= 11
    named.clear()
    third = make_remote()
    assert served(third, 1, other) == BEHIND
    settle(third)


# ---------------------------------------------------------------------------------------------- how long


class Porter:
    """A store that is asked, and answers nothing."""

    root, block_bytes, is_up = b"", 1, True

    def __init__(self, ranks: int, waits_s: float = 0.0) -> None:
        self.ranks, self.waits_s = ranks, waits_s

    def look(self, look: Look) -> bool:
        self.last = look
        return True

    def take_found(self) -> list[LookAnswer]:
        return []

    def lookups_wait_s(self) -> float:
        return self.waits_s


def look_at(blocks: int) -> Look:
    return Look(0, b"", (), 2, array_of([0] * 2 * blocks))


@pytest.mark.parametrize(("blocks", "ranks"), [(1, 1), (4096, 1), (4096, 8)])
def test_patience_follows_blocks_and_ranks(blocks: int, ranks: int, clock: Clock) -> None:
    lookups = Lookups(WAIT_S)
    lookups.ask(Porter(ranks), 1, look_at(blocks), patience_s=60)
    lookup = lookups.of(1)
    assert lookup is not None and lookup.until - clock.now == pytest.approx(WAIT_S + OBJECT_S * blocks * ranks)


def test_patience_follows_what_was_asked_before_and_what_computing_takes(clock: Clock) -> None:
    lookups, porter = Lookups(WAIT_S), Porter(8)
    for request_id, patience_s in ((1, 60.0), (2, 60.0), (3, 0.5), (4, 0.0)):
        lookups.ask(porter, request_id, look_at(4096), patience_s)
    waits = [lookup.until - clock.now for number in range(1, 4) if (lookup := lookups.of(number)) is not None]
    assert waits == [pytest.approx(each) for each in (0.1 + 4096 * 8 * OBJECT_S, 0.1 + 2 * 4096 * 8 * OBJECT_S, 0.5)]
    unawaited = lookups.of(4)
    assert unawaited is not None and not unawaited.is_waited_for(clock.now)


def test_an_answer_to_somebody_elses_question_is_none(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    del clock
    lookups, porter = Lookups(WAIT_S), Porter(1)
    lookups.ask(porter, 1, look_at(4), patience_s=60)
    monkeypatch.setattr(porter, "take_found", lambda: [LookAnswer(77, b"", 3), LookAnswer(1, b"", 2)])
    lookups.take_answers(porter)
    lookup = lookups.of(1)
    assert lookup is not None and (lookup.found, lookup.is_over) == (2, True)


def test_a_long_call_is_no_silence() -> None:
    lookups = Lookups(WAIT_S)
    assert lookups.may_ask(Porter(8, waits_s=0.3)) and not lookups.may_ask(Porter(8, waits_s=1))


# ---------------------------------------------------------------------------------------------- what the scheduler sees


def active_request(number: int, *, is_new: bool = True) -> Any:
    return SimpleNamespace(py_request_id=number, is_context_init_state=is_new)


def ids(requests: Any) -> list[int]:
    return [request.py_request_id for request in requests]


def test_a_request_that_was_shown_is_not_decided_about_again() -> None:
    link, asked = Link(), list[list[int]]()

    def hold_back(waiting: Any, active: Any) -> list[int]:
        del active
        asked.append(ids(waiting))
        return [2] if len(asked) < 3 else []

    link.hold_back = hold_back
    gate, requests = HeldBack(link, OneRank()), [active_request(number) for number in (1, 2, 3)]
    requests.append(active_request(4, is_new=False))
    assert [ids(gate.shown(requests)) for _ in range(4)] == [[1, 3, 4], [1, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]
    assert asked == [[1, 2, 3], [2], [2]]
    gate.shown([])
    gate.shown(requests[:1])
    assert asked[3:] == [[1]], "another one under its number"


def test_a_fault_of_ours_shows_all() -> None:
    link = Link()
    link.hold_back = lambda *_: [1]
    requests = [SimpleNamespace(py_request_id=1)]
    assert HeldBack(link, OneRank()).shown(requests) is requests


def test_ranks_show_the_same_and_only_the_first_decides() -> None:
    steps, ranks = 6, 4

    def work(rank: int, comm: RankComm) -> list[list[int]]:
        link, left = Link(), [3]

        def hold_back(waiting: Any, active: Any) -> list[int]:
            del active
            left[0] -= 1
            return [each.py_request_id for each in waiting if each.py_request_id == 2 and left[0] >= 0]

        if rank == 0:
            link.hold_back = hold_back
        gate = HeldBack(link, MpiRanks(comm, 30))
        requests = [active_request(number) for number in (1, 2, 3)]
        return [ids(gate.shown(requests)) for _ in range(steps)]

    between = Between(ranks)
    shown = on_ranks(between, work)
    assert shown == [[[1, 3]] * 3 + [[1, 2, 3]] * 3] * ranks
    assert between.sent == 4 * ranks * (ranks - 1), "nothing is sent when nobody waits"


def test_an_engine_that_computes_nothing_sleeps_while_an_answer_is_out(bench: Bench) -> None:
    """Its loop would else keep the interpreter from the thread that takes the answer."""
    porter = porter_of(bench)
    steps(bench, 3)
    assert porter.rests == 0, "it was asked for nothing"
    submitted(bench, 1)
    steps(bench, 5)
    assert porter.rests == 5
    bench.executor.submit(Request(2, [1, 2, 3], max_new_tokens=3))
    rests = []
    for _ in range(6):
        before = porter.rests
        bench.executor.step()
        rests.append((bool(bench.executor.scheduled), porter.rests - before))
    assert set(rests) == {(True, 0), (False, 1)}
    porter.holds_looks = False
    settle(bench)


# ---------------------------------------------------------------------------------------------- the store forgets


def test_what_the_host_tier_hits_is_put_again_where_the_store_has_forgotten_it(
    make_remote: MakeRemote, memory: dict[Key, bytes]
) -> None:
    bench = make_remote()
    served(bench, 1)
    settle(bench)
    held = dict(memory)
    for left in (0, 5):
        for key in [*memory][left:]:
            del memory[key]
        assert served(bench, 2 + left) == BEHIND, "from the host tier"
        settle(bench)
        assert memory.items() >= dict([*held.items()][:11]).items()
    other = make_remote()
    assert served(other, 1) == BEHIND
    settle(other)


def test_what_is_on_its_way_is_not_put_twice(make_remote: MakeRemote, memory: dict[Key, bytes]) -> None:
    """The store lacks it, since its put waits."""
    bench = make_remote()
    porter: PorterDouble = porter_of(bench)
    porter.holds_puts = True
    served(bench, 1)
    steps(bench, 3)
    put = sum(len(message.keys) for message in porter.asked)
    for number in (2, 3):
        assert served(bench, number) == BEHIND
    assert sum(len(message.keys) for message in porter.asked) == put
    porter.holds_puts = False
    settle(bench)
    assert len(memory) == 12 and not bench.scheduler.side.behind.puts._coming
