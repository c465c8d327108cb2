"""The engine's manners: what it refuses, what it takes back, and that it ends."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engine.load import ENGINES, LENGTH_MAX, TIGHT, VOCABULARY, Load, Played, usual_load
from trtllm_kvfix.engine.cache import Cache
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig
from trtllm_kvfix.engine.loop import Engine
from trtllm_kvfix.engine.machine import Machine, open_machine
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.native import DeviceError, unplug
from trtllm_kvfix.staging import MovableMark
from trtllm_kvfix.tools.bench.runs import random_model

MODEL = random_model(0, positions=LENGTH_MAX, vocabulary=VOCABULARY)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = open_machine("cpu")
    yield machine
    machine.close()


@pytest.fixture
def engine(machine: Machine) -> Iterator[Engine]:
    engine = Engine(machine, MODEL, TIGHT)
    yield engine
    engine.close()


def test_a_request_that_is_too_long_is_refused(engine: Engine) -> None:
    with pytest.raises(SettingsError, match=f"length_max={LENGTH_MAX}"):
        engine.submit(Request(1, [1] * 100, 29))
    with pytest.raises(SettingsError, match="at least 1"):
        engine.submit(Request(1, [], 5))
    assert not engine.busy


def test_an_answer_ends_at_its_stop_token_and_everything_is_free_again(engine: Engine) -> None:
    load = Load(1)
    whole = load.expected[0]
    prompt = load.requests()[0]
    cut = Request(1, prompt.prompt, prompt.max_new_tokens, prompt.adapter, stop=whole[2])
    engine.run([cut])
    assert cut.answer == whole[: whole.index(whole[2])]
    assert engine.cache.free_blocks() == TIGHT.blocks_primary


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_a_request_that_hangs_up_leaves_nothing_behind(engine: Engine, steps: int) -> None:
    load = Load(2)
    gone, other = load.requests()
    long = Request(7, list(range(100)), 20, gone.adapter)
    engine.submit(long)
    engine.submit(other)
    for _ in range(steps):
        engine.step()
    engine.cancel(long)
    engine.run()
    assert other.answer == load.expected[other.request_id]
    assert engine.cache.free_blocks() == TIGHT.blocks_primary
    engine.cache.core.check_invariants()


def test_a_cache_that_cannot_hold_a_sequence_is_refused() -> None:
    with pytest.raises(SettingsError, match="cannot hold a sequence of 512"):
        EngineConfig(blocks_primary=63)


def test_what_cannot_be_off_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="token-budget cannot change an answer"):
        replace(TIGHT, off=frozenset(["token-budget"]))
    with pytest.raises(SettingsError, match="'nonsense' is not a fix"):
        replace(TIGHT, off=frozenset(["nonsense"]))
    with pytest.raises(SettingsError, match="needs the manager one-by-one"):
        replace(TIGHT, off=frozenset(["computed-blocks"]))
    with pytest.raises(SettingsError, match="this engine has v1"):
        replace(TIGHT, off=frozenset(["staged-offsets-v2"]))
    assert "staged-offsets-v1" in HAZARDS


def test_a_failed_forward_pass_ends_the_run_with_its_reason(machine: Machine) -> None:
    engine = Engine(machine, replace(MODEL, unembedding=MODEL.unembedding[:-1]), TIGHT)
    with pytest.raises(KvfixError, match="a forward pass failed"):
        engine.run(Load(1).requests())


def test_a_device_that_is_gone_ends_the_run() -> None:
    machine = open_machine("cpu")
    engine = Engine(machine, MODEL, TIGHT)
    unplug(machine.device)
    with pytest.raises(DeviceError, match="unplugged"):
        engine.run(Load(1).requests())


@pytest.mark.parametrize("manager", ["native", "one-by-one"])
def test_a_batch_that_takes_more_than_was_reckoned_gives_back_who_came_last(
    monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    """Copies are under way behind what is held: waiting for them must let it go."""
    reckoned, make_room, returned = Cache.prospect, Cache._make_room, 0

    def too_few(cache: Cache, request: Request) -> tuple[int, int]:
        blocks, tokens = reckoned(cache, request)
        return max(0, blocks - 4), tokens

    def counted(cache: Cache, growing: list[Request], admitted: list[Request]) -> list[Request]:
        nonlocal returned
        back = make_room(cache, growing, admitted)
        returned += len(back)
        return back

    monkeypatch.setattr(Cache, "prospect", too_few)
    monkeypatch.setattr(Cache, "_make_room", counted)
    assert Played(Load(120), replace(TIGHT, manager=manager, late_every=1)).wrong == []
    assert returned > 0


def test_who_hangs_up_while_the_connector_loads_gives_its_blocks_back(machine: Machine) -> None:
    load = Load(80)
    engine = Engine(machine, MODEL, replace(TIGHT, tier="connector"))
    requests = load.requests()
    for request in requests:
        engine.submit(request)
    gone: list[Request] = []
    while engine.busy:
        engine.step()
        loading = next((each for each in engine.scheduler.running if each.loading), None)
        if loading is not None and len(gone) < 3:
            engine.cancel(loading)
            gone.append(loading)
    assert gone, "nobody was loading"
    assert all(each.answer == load.expected[each.request_id] for each in requests if each not in gone)
    assert engine.cache.free_blocks() == TIGHT.blocks_primary
    engine.cache.core.check_invariants()
    engine.close()


def test_no_save_is_waited_for_behind_a_held_step(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had to wait for another save of the same blocks begins behind what the device has been given by then."""
    engine = Engine(machine, MODEL, replace(TIGHT, tier="connector"))
    cache, could_begin = engine.cache, list[bool]()
    machine.hold()
    begin = MovableMark(machine.device, machine.stream)
    begin.record()
    assert not begin.done()

    def saved() -> None:
        could_begin.append(begin.done())
        cache.leaving.clear()

    monkeypatch.setattr(cache.tier, "wait", saved)
    cache.leaving[1] = Request(1, [1], 1)
    cache.wait_for_leaving()
    assert could_begin == [True]
    engine.close()


def test_a_request_may_be_cancelled_between_the_end_of_its_load_and_the_next_step() -> None:
    load, machine = usual_load(), open_machine("cpu")
    engine = Engine(machine, load.model, ENGINES["the connector"])
    cancelled = 0
    for request in load.requests():
        engine.submit(request)
    while engine.busy:
        engine.step()
        loading = [request for request in engine.scheduler.running if request.loading]
        if loading and cancelled < 5:
            assert engine.cache.tier is not None
            engine.cache.tier.wait()  # it has seen the end, and nobody has asked for it
            engine.cancel(loading[0])
            cancelled += 1
    assert cancelled == 5
    engine.close()
    machine.close()
