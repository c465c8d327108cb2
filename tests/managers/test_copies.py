"""Copies between slots: in order, behind the stream that computes, and ended at fixed points only."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.managers.making import Bench, bench
from trtllm_kvfix import native
from trtllm_kvfix.metrics import counters


@pytest.fixture
def tight() -> Iterator[Bench]:
    """Four blocks hold a prompt; the next one sends them to the host tier."""
    with bench(blocks=4, host=8) as b:
        b.served(1, range(16))
        yield b


def test_a_block_goes_to_the_host_and_comes_back_with_its_bytes(tight: Bench) -> None:
    layer = np.asarray(tight.impl.get_primary_pool_data(2))
    kept = np.arange(layer.size, dtype=np.uint16).reshape(layer.shape).view(np.float16)
    layer[:] = kept
    again = [tight.request(2, range(16))]
    tight.prepare(again)
    before = tight.impl.get_cache_block_ids(2, 64)[0]
    tight.impl.remove_sequence(2, again[0], False)
    other = tight.request(3, range(100, 116))
    tight.prepare([other])
    tight.device.synchronize(tight.stream)
    layer[:] = 0
    tight.impl.remove_sequence(3, None, False)
    back = tight.request(4, range(16))
    tight.prepare([back])
    assert tight.reused(back) == 15
    tight.device.synchronize(tight.stream)
    for was, now in zip(before, tight.impl.get_cache_block_ids(4, 64)[0], strict=True):
        assert (layer[now].view(np.uint16) == kept[was].view(np.uint16)).all()
    tight.impl.remove_sequence(4, None, False)


def test_a_block_in_flight_is_found_by_nobody_until_the_next_head(tight: Bench) -> None:
    gate = tight.device.close_gate(tight.stream)
    other = tight.request(2, range(100, 104))
    tight.prepare([other])
    longer = native.SequenceRequest(9, [*range(16), 999])
    assert tight.impl.core.analyze_prefix_reuse(longer).tokens == 12, "the last block is on its way to host"
    tight.device.open_gate(gate)
    tight.device.synchronize(tight.stream)
    assert tight.impl.core.analyze_prefix_reuse(longer).tokens == 12, "done, but not ended"
    tight.impl.sync_transfer_manager_with_buffer_manager()
    found = tight.impl.core.analyze_prefix_reuse(longer)
    assert (found.tokens, found.blocks_host) == (16, 1)


def test_who_owns_what_did_not_arrive_cannot_go_on(tight: Bench) -> None:
    other = tight.request(2, range(100, 116))
    tight.prepare([other])
    tight.impl.remove_sequence(2, other, False)
    back = tight.request(3, range(16))
    tight.impl.sync_transfer_manager_with_buffer_manager()
    tight.impl.add_sequence(3, 16, 1, back)
    gate = tight.device.close_gate(tight.stream)
    native.fail_operation(tight.device, 1)
    tight.impl.refresh_blocks()
    tight.device.open_gate(gate)
    with pytest.raises(RuntimeError, match=r"failed for requests \[3\]"):
        tight.impl.sync_transfer_manager_with_buffer_manager()
    tight.impl.remove_sequence(3, None, False)


def is_free(core: native.BlockManager) -> bool:
    host = core.get_kv_cache_stats().windows[0].host
    return host.free == host.blocks


class Refusing:
    def record(self, _event: int, _stream: int) -> None:
        raise native.DeviceError("record: refused")


def test_copies_that_the_device_refuses_before_the_first_leave_no_slot_behind(
    tight: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other, failed = tight.request(2, range(100, 116)), counters.native_failed_copies.value
    with monkeypatch.context() as patched:
        patched.setattr(tight.impl._copies, "_device", Refusing())
        tight.prepare([other])
    assert is_free(tight.impl.core), "what did not reach it is forgotten"
    assert tight.cached(range(16)) == 0
    assert counters.native_failed_copies.value == failed + 1
    assert "no longer cached: record: refused" in caplog.text


def test_copies_that_nobody_waits_for_are_told_once_and_counted_each_time(
    tight: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    failed = counters.native_failed_copies.value
    native.fail_operation(tight.device, 1)  # and with it, whatever this stream is given later
    for number in (2, 3):
        other = tight.request(number, range(100 * number, 100 * number + 16))
        tight.prepare([other])
        tight.computed(other)
        tight.impl.remove_sequence(number, other, False)
        tight.impl.store_context_blocks(other)
    assert counters.native_failed_copies.value == failed + 2
    assert caplog.text.count("no longer cached") == 1


class Lost:
    """A device behind an error that stays."""

    def synchronize(self, _stream: int) -> None:
        raise native.DeviceError("synchronize: lost")

    def destroy_event(self, _event: int) -> None:
        raise native.DeviceError("destroy_event: lost")


def test_on_a_device_that_is_lost_copies_end_and_the_memory_is_given_back(
    tight: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tight.request(2, range(100, 116))
    tight.prepare([other])
    monkeypatch.setattr(tight.impl._copies, "_device", Lost())
    tight.impl.release_pools()
    assert tight.cached([*range(16), 999]) == 16, "their ticket has ended"
    assert tight.impl.get_kv_cache_stats().allocated_bytes == 0


def test_copies_that_no_stream_is_named_for_fail_with_the_reason(tight: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Any:
        raise RuntimeError("no device is named")

    other = tight.request(2, range(100, 116))
    monkeypatch.setattr("trtllm_kvfix.managers.books.current_place", nowhere)
    with pytest.raises(RuntimeError, match="no device is named"):
        tight.prepare([other])
    assert is_free(tight.impl.core)


def test_copies_of_one_ticket_that_depend_on_each_other_keep_their_order() -> None:
    """A slot is sent to the host and written anew by the next copy."""
    with bench(blocks=4, host=8) as b:
        b.served(1, range(15))
        other = b.request(2, range(100, 116))
        b.prepare([other])
        b.computed(other)
        b.impl.remove_sequence(2, other, False)
        back = b.request(3, range(15))
        b.impl.sync_transfer_manager_with_buffer_manager()
        b.impl.core.add_sequence(native.SequenceRequest(3, list(range(15))))
        items = b.impl.core.take_transfers()
        waves = list(b.impl._memory.waves(items.items))
        assert len(waves) > 1
        for wave in waves:
            assert not set(wave.dst) & set(wave.src)
        b.impl.core.complete(items.ticket)
        b.impl.core.remove_sequence(3)
        del back
