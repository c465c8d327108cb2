"""The place of a thread: said by on_stream, nested, never seen by another thread."""

import threading

import numpy as np
import pytest

from trtllm_kvfix import native
from trtllm_kvfix.staging import OffsetStager, current_place, on_stream


def test_a_place_holds_inside_its_block_and_nests() -> None:
    outer, inner = native.open_device("cpu"), native.open_device("cpu")
    with on_stream(outer, 1):
        with on_stream(inner, 2):
            assert current_place() == (inner, 2)
        assert current_place() == (outer, 1)


def test_another_thread_has_no_place_of_this_one() -> None:
    seen: list[str] = []

    def look() -> None:
        with pytest.raises(RuntimeError, match="no device") as error:
            current_place()
        seen.append(str(error.value))

    with on_stream(native.open_device("cpu"), 1):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen


def test_a_ship_without_a_stream_goes_to_the_place() -> None:
    device = native.open_device("cpu")
    stream = device.create_stream()
    table = np.arange(2 * 4, dtype=np.int32).reshape(1, 1, 2, 4)
    dst = device.empty([1, 1, 2, 4], "int32")
    gate = device.close_gate(stream)
    with OffsetStager(layout="v1", num_pools=1, rows_max=1, blocks_max=4, device=device) as stager:
        with on_stream(device, stream):
            stager.ship(dst, table, [0])
        behind = device.create_event()
        device.record(behind, stream)
        assert not device.done(behind)
        device.open_gate(gate)
        np.testing.assert_array_equal(device.download(dst, stream), table)
