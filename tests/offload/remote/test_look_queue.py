"""Lookups in the porter, against a store that answers when the test says so."""

import queue
import threading
from collections.abc import Sequence

import pytest

from trtllm_kvfix.offload.remote import porter_process
from trtllm_kvfix.offload.remote.keys import array_of, keys_behind, object_name
from trtllm_kvfix.offload.remote.messages import Look, LookAnswer
from trtllm_kvfix.offload.remote.porter_process import FIRST_BLOCKS, LookQueue

WAIT_S = 20


def look(number: int, blocks: int, held: int = 0) -> Look:
    """Blocks of one token, which no other prompt has."""
    return Look(number, b"start", (), 1, array_of(range(1000 * number, 1000 * number + blocks)), held)


def keys_of(prompt: Look) -> list[bytes]:
    return keys_behind(prompt.start, 0, prompt.tokens, 1, ())


class Asked:
    """A store, and what it was asked: sizes of calls, and prompts that took a part in each."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.calls: list[int] = []
        self.names: list[str] = []
        self.objects: set[str] = set()
        self.error: Exception | None = None
        self.found: queue.SimpleQueue[LookAnswer] = queue.SimpleQueue()
        self.entered, self.may_go = threading.Semaphore(0), threading.Semaphore(0)
        self.waits = False
        self.queue = LookQueue(ranks, self.exist, self.found.put)

    def exist(self, names: Sequence[str]) -> list[bool]:
        self.entered.release()
        if self.waits:
            assert self.may_go.acquire(timeout=WAIT_S)
        self.calls.append(len(names))
        self.names += names
        if self.error is not None:
            raise self.error
        return [name in self.objects for name in names]

    def put(self, prompt: Look, blocks: int, ranks: Sequence[int] | None = None) -> None:
        who = range(self.ranks) if ranks is None else ranks
        self.objects.update(object_name(key, rank, self.ranks) for key in keys_of(prompt)[:blocks] for rank in who)

    def answer(self) -> LookAnswer:
        return self.found.get(timeout=WAIT_S)

    def ask(self, prompt: Look) -> int:
        self.queue.add(prompt)
        answer = self.answer()
        assert answer == LookAnswer(prompt.number, b"".join(keys_of(prompt)), answer.blocks)
        return answer.blocks


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("there", [0, 1, FIRST_BLOCKS - 1, FIRST_BLOCKS, FIRST_BLOCKS + 1, 4095, 4096])
def test_the_leading_blocks_that_all_ranks_have_are_counted(ranks: int, there: int) -> None:
    store, prompt = Asked(ranks), look(1, 4096)
    store.put(prompt, there)
    store.put(prompt, 4096, ranks=range(1, ranks))  # the first rank lacks the others
    if ranks == 1:
        store.objects.update(object_name(key, 0, 1) for key in keys_of(prompt)[there + 1 :])
    assert store.ask(prompt) == there
    assert len(store.names) == len(set(store.names)), "nothing is asked twice"


def test_a_new_prompt_costs_one_small_call_however_long_it_is() -> None:
    store = Asked(8)
    assert store.ask(look(1, 4096)) == 0
    assert store.calls == [8 * FIRST_BLOCKS]


def test_no_call_asks_about_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_process, "OBJECTS_MAX", 1000)
    store, prompt = Asked(8), look(1, 400)
    store.put(prompt, 400)
    assert store.ask(prompt) == 400
    assert max(store.calls) == 1000 and sum(store.calls) == 8 * 400


def test_a_block_of_more_ranks_than_a_call_may_ask_about_has_a_call_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_process, "OBJECTS_MAX", 1)
    store, prompt = Asked(2), look(1, 3)
    store.put(prompt, 3)
    assert store.ask(prompt) == 3 and store.calls == [2, 2, 2]


def test_prompts_that_wait_share_a_call() -> None:
    """A master that is far away is asked once for all that came meanwhile."""
    store = Asked(1)
    store.waits = True
    store.queue.add(look(1, 10))
    assert store.entered.acquire(timeout=WAIT_S)
    prompts = [look(number, 10) for number in range(2, 33)]
    for prompt in prompts[::2]:
        store.put(prompt, 10)
    for prompt in prompts:
        store.queue.add(prompt)
    store.waits = False
    store.may_go.release()
    answers = {answer.number: answer.blocks for answer in (store.answer() for _ in range(32))}
    assert store.calls == [10, 310]
    assert answers == {1: 0} | {prompt.number: 10 * (prompt.number % 2 == 0) for prompt in prompts}


def test_a_long_prompt_does_not_hold_up_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_process, "OBJECTS_MAX", FIRST_BLOCKS)
    store, long, short = Asked(1), look(1, 900), look(2, 4)
    store.waits = True
    store.put(long, 900)
    store.queue.add(long)
    assert store.entered.acquire(timeout=WAIT_S)
    store.queue.add(short)
    store.waits = False
    store.may_go.release()
    assert [store.answer().number, store.answer().number] == [2, 1]


def test_a_call_that_fails_fails_what_it_asks_about_and_nothing_else() -> None:
    store, prompt = Asked(1), look(1, 4)
    store.put(prompt, 4)
    store.error = OSError("gone")
    store.queue.add(prompt)
    assert store.answer() == LookAnswer(1, error="OSError: gone")
    store.error = None
    assert store.ask(prompt) == 4


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_the_host_tier_has_is_asked_about_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not looked for, but a store forgets first what nobody asks about."""
    clock = Clock()
    monkeypatch.setattr(porter_process, "monotonic", clock)
    store, prompt = Asked(1), look(1, 10, held=8)
    store.put(prompt, 10)
    asked = []
    for seconds in (0, 1, porter_process.FRESH_S - 2, 2, 1):
        clock.now += seconds
        assert store.ask(prompt) == 10
        asked.append(store.calls[-1])
    assert asked == [10, 2, 2, 10, 2]
    store.error = OSError("the master is gone")
    store.queue.add(prompt)
    store.answer()
    store.error, store.objects = None, set()
    assert store.ask(prompt) == 0, "nothing is known of a store that has failed"


def test_what_is_known_of_the_store_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_process, "FRESH_MAX", 3)
    store = Asked(1)
    for number in range(1, 9):
        prompt = look(number, 4)
        store.put(prompt, 4)
        store.ask(prompt)
    assert [*store.queue._fresh] == [keys_of(look(number, 4))[-1] for number in (6, 7, 8)]
