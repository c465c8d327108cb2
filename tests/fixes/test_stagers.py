"""One stager for each live table, made as the settings say, gone with its table."""

import gc
import threading
from typing import Any

import pytest

from tests.fixes.applied import standing_in
from tests.simulated import SHAPE, Bench
from tests.standin.serving import Server
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.metrics.counters import Counter
from trtllm_kvfix.native import OffsetStager
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixChoices, FixSettings, Settings
from trtllm_kvfix.staging import on_stream, stagers
from trtllm_kvfix.staging.stagers import Stagers, v1


def test_a_table_keeps_its_stager_and_another_has_its_own() -> None:
    bench, every = Bench(), Stagers()
    other = bench.pinned(SHAPE)
    with on_stream(bench.device, bench.stream):
        first = every.of(bench.table, v1)
        assert every.of(bench.table, v1) is first
        assert every.of(other, v1) is not first


def test_a_stager_goes_with_its_table_and_its_work_stays_counted() -> None:
    bench, every = Bench(), Stagers()
    before = counters.read()["staged_shipments"]
    with on_stream(bench.device, bench.stream):
        for _ in range(3):
            table = bench.pinned(SHAPE)
            every.of(table, v1).ship(bench.output.memory, table, range(2), stream=bench.stream)
            del table
            gc.collect()
    assert every._entries == {}
    assert counters.read()["staged_shipments"] == before + 3


@pytest.mark.parametrize("when", ["before its turn", "in its turn", "after its turn"])
def test_a_table_that_goes_while_its_work_is_counted_is_counted_once(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, every = Bench(), Stagers()
    tables = [bench.pinned(SHAPE) for _ in range(3)]
    gone = {"before its turn": 2, "in its turn": 1, "after its turn": 0}[when]
    before = counters.staged_shipments.value
    with on_stream(bench.device, bench.stream):
        for table in tables:
            every.of(table, v1).ship(bench.output.memory, table, range(2), stream=bench.stream)
        del table
    add, turn = Counter.add, iter(range(100))

    def drop_then_add(self: Counter, amount: float = 1) -> None:
        """In the middle of the second stager's turn."""
        if self is counters.staged_shipments and next(turn) == 1:
            del tables[gone]
            gc.collect()
            assert len(every._entries) == 2
        add(self, amount)

    with monkeypatch.context() as patch:
        patch.setattr(Counter, "add", drop_then_add)
        every.count()
    every.count()
    assert counters.staged_shipments.value == before + 3


def test_work_of_tables_that_went_does_not_pile_up_uncounted() -> None:
    bench, every = Bench(), Stagers()
    with on_stream(bench.device, bench.stream):
        for _ in range(5):
            table = bench.pinned(SHAPE)
            every.of(table, v1).ship(bench.output.memory, table, range(2), stream=bench.stream)
            del table
            gc.collect()
            assert len(every._gone) == 1


def scaled(scales: Any, offsets: Any) -> dict[str, Any]:
    return {"layout": "v2", "index_scales": scales.tolist(), "kv_offset": offsets.tolist()}


def test_slices_that_are_made_for_each_call_get_no_stager_and_leave_nothing() -> None:
    bench, every = Bench(), Stagers()
    scales, offsets = bench.pinned((SHAPE[0],)), bench.pinned((SHAPE[0],))
    with on_stream(bench.device, bench.stream):
        for _ in range(50):
            objects = (bench.table[:1], scales[:1], offsets[:1])
            assert every.of_lasting(scaled, *objects) is None
            del objects
        gc.collect()
        assert every._entries == {}
        assert every.of_lasting(scaled, bench.table, scales, offsets) is None
        lasting = every.of_lasting(scaled, bench.table, scales, offsets)
        assert lasting is not None and every.of_lasting(scaled, bench.table, scales, offsets) is lasting


def test_the_same_table_with_other_scales_is_another_launch() -> None:
    bench, every = Bench(), Stagers()
    one, two = bench.pinned((SHAPE[0],)), bench.pinned((SHAPE[0],))
    two.numpy()[:] = 7
    with on_stream(bench.device, bench.stream):
        made = [every.of_lasting(scaled, bench.table, scales, one) for scales in (one, two, one, two)]
    assert made[:2] == [None, None] and None not in made[2:] and made[2] is not made[3]


def test_an_identity_that_was_used_again_is_not_taken_for_the_earlier_object() -> None:
    bench, every = Bench(), Stagers()
    offsets, other = bench.pinned((SHAPE[0],)), bench.pinned(SHAPE)
    with on_stream(bench.device, bench.stream):
        for _ in range(2):
            every.of_lasting(scaled, bench.table, offsets, offsets)
        (key,) = every._entries
        every._entries[(id(other), *key[1:])] = every._entries.pop(key)  # as if `other` had the table's address
        assert every.of_lasting(scaled, other, offsets, offsets) is None


def test_bytes_and_waits_for_a_slot_are_counted() -> None:
    bench, every = Bench(), Stagers(mode="snapshot", slots=2)
    before = counters.read()
    gate = bench.device.close_gate(bench.stream)

    def ship(times: int) -> None:
        with on_stream(bench.device, bench.stream):
            for _ in range(times):
                every.of(bench.table, v1).ship(bench.output.memory, bench.table, range(2), stream=bench.stream)

    ship(2)
    one_more = threading.Thread(target=ship, args=(1,))
    one_more.start()
    while counters.read()["ring_waits"] == before["ring_waits"]:
        assert one_more.is_alive(), "a slot was filled again while the stream was held"
    bench.device.open_gate(gate)
    one_more.join()
    moved = {name: value - before[name] for name, value in counters.read().items()}
    assert (moved["staged_shipments"], moved["ring_waits"]) == (3, 1)
    assert moved["staged_bytes"] > 0 and moved["ring_wait_seconds"] > 0


def test_counters_keep_no_stagers_alive() -> None:
    every = Stagers()
    before = counters.read()["staged_shipments"]
    del every
    gc.collect()
    assert counters.read()["staged_shipments"] == before


@pytest.mark.parametrize(
    ("fix_id", "v2"), [("staged-offsets-v1", False), ("staged-offsets-v2", True)], ids=["v1", "v2"]
)
def test_stagers_are_made_as_the_settings_say(fix_id: str, v2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Noted(OffsetStager):
        def __init__(self, **how: Any) -> None:
            made.append(how)
            super().__init__(**how)

    monkeypatch.setattr(stagers, "OffsetStager", Noted)
    chosen = {name: "on" if name == fix_id else "off" for name in FIX_IDS}
    tuning = FixSettings(staging_mode="snapshot", staging_slots=5)
    with standing_in("C"):
        registry = Registry(ALL)
        registry.apply(Settings(fixes=FixChoices.model_validate(chosen), tuning=tuning), Upstream(), at_last=True)
        server = Server({"kv_cache_config": {"use_kv_cache_manager_v2": v2}})
        server.serve(server.workload(3))
        registry.revert()
    assert [(how["mode"], how["slots"], how["layout"]) for how in made] == [("snapshot", 5, "v2" if v2 else "v1")]
