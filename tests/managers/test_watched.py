"""What the canary of the native manager hears in upstream's calls, what it says, and what is refused."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.managers.making import Bench, bench
from tests.managers.test_constructors import engine
from trtllm_kvfix.canary import here
from trtllm_kvfix.canary.canary import Canary
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers import constructors
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.native import FillBooks
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import on_stream

ONE_POOL = {"num_kv_heads_per_layer": [2, 2, 2]}


@pytest.fixture(autouse=True)
def observing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_CANARY", "observe")


class Watched:
    def __init__(self, b: Bench) -> None:
        self.bench = b
        found = b.impl.canary
        assert found is not None
        self.canary: Canary = found
        self.address = int(b.impl.get_block_pool_pointers()[0, 0])
        (shape,) = b.impl.layout.pools
        self.slot_bytes = shape.slot_bytes
        raw = (ctypes.c_uint8 * (shape.window.blocks_primary * self.slot_bytes)).from_address(self.address)
        self.bytes = np.ctypeslib.as_array(raw).reshape(-1, self.slot_bytes)
        self.bytes[:] = np.random.default_rng(0).integers(0, 256, self.bytes.shape, np.uint8)

    def iterations(self, count: int = 1) -> None:
        """The next steps, which compute nothing."""
        for _ in range(count):
            self.bench.prepare()
            self.bench.device.synchronize(self.bench.stream)

    def slots(self, request_id: int) -> list[int]:
        (found,) = self.bench.impl.get_cache_block_ids(request_id, 64)
        return list(found)

    def fill(self, slots: list[int], value: int, stream: int) -> None:
        for slot in slots:
            self.bench.device.fill_words(self.address + slot * self.slot_bytes, self.slot_bytes // 4, value, stream)


@contextmanager
def watched(**given: Any) -> Iterator[Watched]:
    with bench("S", **ONE_POOL, **given) as b:
        yield Watched(b)


def test_the_canary_and_the_memory_end_also_where_the_copies_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched() as w:
        copies, closed = w.bench.impl._copies, []

        def close() -> None:
            closed.append("copies")
            raise ValueError("no such ticket")

        with monkeypatch.context() as patch:
            patch.setattr(copies, "close", close)
            patch.setattr(w.canary, "close", lambda: closed.append("canary"))
            with pytest.raises(ValueError, match="no such ticket"):
                w.bench.impl.release_pools()
            assert w.bench.impl.get_kv_cache_stats().allocated_bytes == 0
            w.bench.impl.release_pools()
        assert closed == ["copies", "canary"]
        copies.close()
        w.canary.close()


def test_a_cached_block_that_changes_is_found_and_told_everywhere() -> None:
    before = counters.read()["canary_changed_blocks"]
    with watched() as w:
        first = w.bench.request(1, range(14))
        w.bench.prepare([first])
        slot = w.slots(1)[1]
        w.bench.computed(first)
        w.bench.impl.store_context_blocks(first)
        w.iterations(3)
        w.bytes[slot, 5] ^= 1
        w.iterations(3)
        report = w.canary.report()
        (found,) = report.findings
        assert (found.kind, found.slot, found.layers, found.filler) == ("changed", slot, (0,), 1)
        (told,) = [each for each in here.attested() if each["findings"]]
        assert told["counts"] == {"changed": 1} and f"slot {slot} of request 1" in told["findings"][0]["text"]
        assert counters.read()["canary_changed_blocks"] == before + 1 and counters.read()["canary_observes"] == 1
        last = [each for each in flight.recorder().entries() if each["kind"] == "canary spoke"][-1]
        assert (last["slot"], last["filler"], last["text"]) == (slot, 1, "changed, live")


def test_the_last_block_of_a_prompt_in_chunks_is_filled_although_nothing_grows_behind_it() -> None:
    with watched() as w:
        first = w.bench.request(1, range(12))
        w.bench.prepare([first])
        for position in (8, 12):
            first.context_current_position = position
            w.bench.impl.store_context_blocks(first)
            w.iterations(2)
        again = w.bench.request(2, [*range(12), 99])
        w.bench.prepare([again])
        assert w.bench.impl.get_token_count(2) == 13 and again.context_current_position == 12
        w.iterations(2)
        assert w.canary.report().counts == {} and w.canary.report().blocks_compared["reused"] == 3


def test_blocks_of_dummies_are_written_by_every_step_and_never_count() -> None:
    with watched() as w:
        dummy = w.bench.request(1, [1] * 12)
        dummy.is_dummy_request = True
        w.bench.prepare([dummy])
        slots = w.slots(1)
        dummy.add_new_token(9_000, 0)
        for number in range(6):
            w.bytes[slots] = number
            w.iterations()
        assert w.canary.report().counts == {} and w.canary.report().blocks_taken == 0
        assert w.canary.fault is None


@contextmanager
def two_streams(model_on_current: bool) -> Iterator[tuple[Watched, int, int]]:
    """The model runs on the stream that upstream has named, or on the current one. Returns it, and the other."""
    with watched() as w:
        current = w.bench.device.create_stream()
        with on_stream(w.bench.device, current):
            yield w, *((current, w.bench.stream) if model_on_current else (w.bench.stream, current))
        w.bench.device.destroy_stream(current)


def is_silent_when_all_has_run(w: Watched, *streams: int) -> None:
    for _ in range(6):
        for stream in streams:
            w.bench.device.synchronize(stream)
        w.bench.prepare()
    report = w.canary.report()
    assert report.counts == {} and report.blocks_compared["live"] > 0


MODEL_ON_CURRENT = pytest.mark.parametrize("model_on_current", [True, False])


@MODEL_ON_CURRENT
def test_looks_stand_behind_the_step_that_wrote(model_on_current: bool) -> None:
    with two_streams(model_on_current) as (w, model, other):
        first = w.bench.request(1, range(12))
        w.bench.prepare([first])
        gate = w.bench.device.close_gate(model)
        w.fill(w.slots(1), 7, model)
        w.bench.computed(first)
        w.bench.prepare()
        w.bench.device.open_gate(gate)
        is_silent_when_all_has_run(w, model, other)


@MODEL_ON_CURRENT
def test_looks_stand_in_front_of_the_step_that_writes_next(model_on_current: bool) -> None:
    """They are late; meanwhile the slots get a new owner, who writes."""
    with two_streams(model_on_current) as (w, model, other):
        first = w.bench.request(1, range(12))
        w.bench.prepare([first])
        slots = w.slots(1)
        w.bench.computed(first)
        for _ in range(3):
            w.iterations()
            w.bench.device.synchronize(other)
        gate = w.bench.device.close_gate(w.bench.stream)  # where the kernel of the looks goes
        w.bench.prepare()
        w.bench.impl.remove_sequence(1, None, False)
        w.bench.prepare([w.bench.request(2, range(100, 140))])
        assert set(slots) & set(w.slots(2))
        w.fill(slots, 8, model)
        w.bench.device.open_gate(gate)
        is_silent_when_all_has_run(w, model, other)


def test_a_rewind_ends_the_canary_and_not_the_server() -> None:
    with watched() as w:
        request = w.bench.request(1, range(12))
        w.bench.prepare([request])
        w.bench.computed(request)
        w.bench.prepare((), [request])
        w.bench.impl.rewind_kv_cache(1, 1)
        assert "was rewound" in str(w.canary.fault)
        w.bench.prepare((), [request])


def test_a_fault_of_ours_ends_the_canary_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched() as w:
        request = w.bench.request(1, range(12))
        w.bench.prepare([request])
        monkeypatch.setattr(FillBooks, "slots_of", None)
        w.bench.prepare((), [request])
        w.bench.prepare()  # it hears of the new block before it looks
        assert w.canary.fault is not None and w.bench.impl.get_token_count(1) == 13


@pytest.mark.parametrize(("pool", "layer"), [(0, 1), (1, 0)])
def test_a_change_in_any_pool_is_found_and_its_layer_named(pool: int, layer: int) -> None:
    """Layers 0 and 2 have two KV heads, and layer 1 has one: two pools, the one with fewer heads first."""
    with bench("S", num_kv_heads_per_layer=[2, 1, 2]) as b:
        assert [each.layers for each in b.impl.layout.pools] == [(1,), (0, 2)]
        request = b.request(1, range(14))
        b.prepare([request])
        (slots,) = b.impl.get_cache_block_ids(1, 64)
        b.computed(request)
        for _ in range(3):
            b.prepare()
            b.device.synchronize(b.stream)
        shape, address = b.impl.layout.pools[pool], int(b.impl.get_block_pool_pointers()[pool, 0])
        b.device.fill_words(address + slots[1] * shape.slot_bytes, 1, 1, b.stream)
        for _ in range(3):
            b.prepare()
            b.device.synchronize(b.stream)
        assert b.impl.canary is not None
        (found,) = b.impl.canary.report().findings
        assert (found.kind, found.slot, found.layers) == ("changed", slots[1], (layer,))


def test_a_cache_that_cannot_be_watched_is_refused_by_name() -> None:
    windows = {"max_attention_window_vec": [64, 16], "blocks_per_window": {64: (16, 0), 16: (16, 0)}}
    with pytest.raises(NotServed, match=r"kvfix.canary: observe: one window .* \(16, 64\)"), bench("S", **windows):
        pass
    connector = type("Connector", (), {"get_num_new_matched_tokens": lambda *_: 0})()
    with (
        pytest.raises(NotServed, match=r"kvfix.canary: observe: a connector loads"),
        bench("S", **ONE_POOL, kv_connector_manager=connector),
    ):
        pass


def test_an_engine_over_upstreams_manager_does_not_start_with_it() -> None:
    assert constructors.objection(Settings(canary="observe"), engine()).startswith(
        "kvfix.canary: observe: the cache is SimpleNamespace; of TensorRT-LLM's own managers, KVCacheManager and"
    )
    assert constructors.objection(Settings(canary="observe", manager="native"), engine()) == ""


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_CANARY", "off")
    with bench("S") as b:
        assert b.impl.canary is None
