"""Rows that a copy reads on its own are not written before it has read them, whoever writes them.

When the copy reads is the copy engine's business. So the promise itself is looked at: from the shipment until they are
settled, the rows stay as they were (loans.py).
"""

import gc
import threading
import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.executor.test_block_offsets_v2 import V2, Bench
from tests.fixes.applied import only, standing_in
from tests.fixes.loans import Loans, watched
from tests.standin.serving import Server
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.staged_offsets_v2 import lending
from trtllm_kvfix.fixes.staged_offsets_v2.way import Way
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixSettings
from trtllm_kvfix.staging import OffsetStager

ID = "staged-offsets-v2"
VARIANTS = ["B2", "C", "D", "F"]
WATCHDOG_S = 30.0
DRAFT: dict[str, Any] = {**V2, "speculative_config": {}}

pytestmark = pytest.mark.usefixtures("variant")


@pytest.fixture
def copies() -> Iterator[Loans]:
    with watched() as loans:
        yield loans


@pytest.fixture
def registry() -> Registry:
    return Registry(ALL)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, registry: Registry) -> Iterator[None]:
    with standing_in(request.param):
        settings = only(ID, tuning=FixSettings(staging_mode="early_copy"))
        assert registry.apply(settings, Upstream(), at_last=True).applied == (ID,)
        yield
        assert registry.revert() == []


def serve(llm_args: dict[str, Any]) -> Server:
    server = Server(llm_args)
    server.serve(server.workload(24))
    server.close()
    return server


@pytest.mark.parametrize("llm_args", [V2, DRAFT], ids=["alone", "with a draft"])
def test_nobody_writes_what_is_lent(llm_args: dict[str, Any], copies: Loans) -> None:
    server = serve(llm_args)
    gc.collect()
    assert copies.made > 10
    assert copies.overwritten == 0
    assert server.witness.corrupt("block offsets") == []


def test_without_putting_them_away_the_rows_are_written(copies: Loans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "PUT_AWAY", ())
    serve(V2)
    assert copies.overwritten > copies.made / 2


def shipped(requests: int = 2) -> Bench:
    bench = Bench(V2)
    for request_id in range(requests):
        bench.add(request_id, 9 + request_id)
    for _ in range(2):  # the stager takes over from private rows
        with bench.tensors.on(bench.stream):
            ids = list(range(requests))
            bench.manager.copy_batch_block_offsets(bench.destinations[0], ids, 1, requests, requests)
    return bench


@pytest.mark.parametrize(
    "place",
    [
        (lending, "_is_as_known"),
        (lending.Lender, "take_back"),
        (lending.Lending, "lender"),
        (lending.Lender, "begin"),
        (Way, "__init__"),
        (Way, "leads"),
        (lending.Lender, "lends"),
        (lending.Lender, "lend_to"),
        (lending.Lender, "put_away"),
        (OffsetStager, "settle"),
    ],
    ids=lambda place: f"{place[0].__name__}.{place[1]}",
)
def test_a_fault_while_lending_ends_nothing(
    place: tuple[Any, str], copies: Loans, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(*place)
    calls = 0

    def once(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("planted")
        return original(*args, **more)

    monkeypatch.setattr(*place, once)
    server = serve(V2)
    assert fuse.of(ID).faults == 1
    assert copies.overwritten == 0
    assert server.witness.corrupt("block offsets") == []


@pytest.mark.parametrize("name", lending.PUT_AWAY)
def test_asking_for_any_of_them_settles_and_brings_all_back(name: str) -> None:
    manager = shipped().manager
    assert not set(lending.PUT_AWAY) & set(vars(manager))
    assert getattr(manager, name) is vars(manager)[name]
    assert set(lending.PUT_AWAY) <= set(vars(manager))


def test_what_upstream_has_set_meanwhile_stays() -> None:
    manager = shipped().manager
    manager.kv_cache_map = mine = {}  # type: ignore[var-annotated]
    assert manager.impl is not None
    assert manager.kv_cache_map is mine


def test_a_manager_that_has_lost_one_of_them_keeps_the_others(copies: Loans) -> None:
    bench = Bench(V2)
    bench.add(0, 9)
    bench.ship(0, [0])
    manager: Any = bench.manager
    mapper = manager.index_mapper

    class Losing:
        """Upstream's own step in the middle of the call takes an attribute away."""

        def __getattr__(self, name: str) -> Any:
            vars(manager).pop("impl", None)
            return getattr(mapper, name)

    impl, manager.index_mapper = manager.impl, Losing()
    with bench.tensors.on(bench.stream):
        manager.copy_batch_block_offsets(bench.destinations[0], [0], 1, 1, 1)
    assert copies.made > 0 and copies.overwritten == 0
    assert {lending.TABLE, "kv_cache_map"} <= set(vars(manager))
    manager.impl = impl


def test_a_settle_that_fails_is_a_fault_and_the_rows_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(_: OffsetStager) -> None:
        raise RuntimeError("planted")

    manager = shipped().manager
    with monkeypatch.context() as patch:
        patch.setattr(OffsetStager, "settle", planted)
        assert manager.kv_cache_map
    assert fuse.of(ID).faults == 1


def test_reverting_gives_everything_back(registry: Registry) -> None:
    manager = shipped().manager
    assert registry.revert() == []
    assert set(lending.PUT_AWAY) <= set(vars(manager))
    assert not any(hasattr(type(manager), name) for name in lending.PUT_AWAY)


def test_a_name_that_is_nowhere_is_an_attribute_error() -> None:
    kind = import_module(Upstream().v2_module.__name__).KVCacheManagerV2  # type: ignore[union-attr]
    bare = object.__new__(kind)
    with pytest.raises(AttributeError, match="has no attribute 'impl'"):
        bare.impl  # noqa: B018


def test_a_manager_with_ways_of_its_own_lends_nothing(copies: Loans) -> None:
    bench = Bench(V2)
    manager: Any = bench.manager
    kind = type(manager)
    manager.__class__ = type(kind.__name__, (kind,), {"impl": None})  # an attribute that hides the way back
    bench.add(0, 9)
    for _ in range(3):
        bench.ship(0, [0])
    assert copies.made == 0


class Stager:
    """Stands for a stager that ships early, and counts how often somebody waits for it."""

    settled = 0

    def settle(self) -> None:
        self.settled += 1


def plain_manager() -> Any:
    class Manager:
        pass

    manager = Manager()
    for name in lending.PUT_AWAY:
        setattr(Manager, name, lending.WayBack(name))
        vars(manager)[name] = object()
    return manager


def lent_by_a_call(lent: lending.Lending, manager: Any, stager: Stager) -> lending.Lender:
    mine = lent.during(manager)
    assert mine is not None
    mine.lend_to(stager)  # type: ignore[arg-type]
    lent.leave(mine)
    return mine


def test_a_manager_that_goes_settles_first() -> None:
    manager, stager = plain_manager(), Stager()
    gone = weakref.ref(lent_by_a_call(lending.Lending(fuse.of(ID)), manager, stager))
    del manager
    gc.collect()
    assert gone() is None and stager.settled == 1


def test_a_reader_finds_its_attribute_though_the_next_call_puts_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has given it back and not looked it up yet; the executor makes a whole call, or waits to end one."""
    manager, lent = plain_manager(), lending.Lending(fuse.of(ID))
    impl = vars(manager)["impl"]
    lender = lent_by_a_call(lent, manager, Stager())
    executor = threading.Thread(target=lent_by_a_call, args=(lent, manager, Stager()), daemon=True)
    lock = lender._lock = Contended()  # type: ignore[assignment]
    take_back = lending.Lender.take_back

    def then_a_call(self: lending.Lender) -> None:
        take_back(self)
        if executor.ident is None:
            executor.start()
            while executor.is_alive() and not lock.contended.is_set():
                executor.join(0.001)

    monkeypatch.setattr(lending.Lender, "take_back", then_a_call)
    assert manager.impl is impl
    executor.join(WATCHDOG_S)
    assert not executor.is_alive() and "impl" not in vars(manager)


def test_a_reader_that_comes_late_takes_nothing_from_the_call_that_is_on() -> None:
    """It found the attribute gone; by the time that it asks for it, a call is on that has lent and not shipped."""
    manager, lent, stager = plain_manager(), lending.Lending(fuse.of(ID)), Stager()
    lent_by_a_call(lent, manager, Stager())
    mine = lent.during(manager)
    assert mine is not None
    mine.lend_to(stager)  # type: ignore[arg-type]
    assert lending.WayBack("impl").__get__(manager) is vars(manager)["impl"]
    lent.leave(mine)
    assert stager.settled == 0 and not set(lending.PUT_AWAY) & set(vars(manager))
    assert manager.impl is not None and stager.settled == 1


def test_a_call_that_is_on_while_the_fix_is_taken_off_waits_for_its_copy() -> None:
    """Nobody will bring back what it puts away, and no writer would find a borrower."""
    manager, lent, stager = plain_manager(), lending.Lending(fuse.of(ID)), Stager()
    mine = lent.during(manager)
    assert mine is not None
    mine.lend_to(stager)  # type: ignore[arg-type]
    lent.end_all()
    lent.leave(mine)
    assert stager.settled == 1 and set(lending.PUT_AWAY) <= set(vars(manager))
    assert lent.during(manager) is None


def test_a_second_call_on_the_manager_takes_nothing_from_the_one_that_is_on() -> None:
    manager, lent, stagers = plain_manager(), lending.Lending(fuse.of(ID)), [Stager(), Stager()]
    mine = lent.during(manager)
    assert mine is not None
    mine.lend_to(stagers[0])  # type: ignore[arg-type]
    second = threading.Thread(target=lent_by_a_call, args=(lent, manager, stagers[1]), daemon=True)
    second.start()
    second.join(WATCHDOG_S)
    lent.leave(mine)
    assert [each.settled for each in stagers] == [1, 0], "the rows are put away for one, so the other has to wait"
    assert manager.impl is not None and [each.settled for each in stagers] == [1, 1]


def test_the_fix_that_comes_again_lends_by_a_lender_of_its_own(registry: Registry) -> None:
    """A manager keeps the lender of the fix before, which a revert of this one does not know."""
    bench = shipped()
    for _ in range(2):
        assert not set(lending.PUT_AWAY) & set(vars(bench.manager))
        assert registry.revert() == []
        assert set(lending.PUT_AWAY) <= set(vars(bench.manager))
        registry.apply(only(ID, tuning=FixSettings(staging_mode="early_copy")), Upstream(), at_last=True)
        for _ in range(3):
            with bench.tensors.on(bench.stream):
                bench.manager.copy_batch_block_offsets(bench.destinations[0], [0, 1], 1, 2, 2)


def test_rows_that_a_call_lends_while_all_is_reverted_are_not_written(
    registry: Registry, copies: Loans, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = shipped()
    lend_to = lending.Lender.lend_to

    def then_revert(lender: lending.Lender, stager: OffsetStager) -> None:
        lend_to(lender, stager)
        other = threading.Thread(target=registry.revert, daemon=True)
        other.start()
        other.join(WATCHDOG_S)

    made = copies.made
    with monkeypatch.context() as patch:
        patch.setattr(lending.Lender, "lend_to", then_revert)
        with bench.tensors.on(bench.stream):
            bench.manager.copy_batch_block_offsets(bench.destinations[0], [0, 1], 1, 2, 2)
    assert copies.made == made + 1 and set(lending.PUT_AWAY) <= set(vars(bench.manager))
    cache = bench.manager.kv_cache_map[0]
    cache.resize(cache.capacity + 3 * bench.manager.tokens_per_block)
    assert copies.unsettled == 0 and copies.overwritten == 0


class Contended:
    """A lock that says when a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.contended = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.contended.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
