"""The place of a thread: said by on_stream, nested, never seen by another thread."""

import threading

import pytest

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place, on_stream
from trtllm_kvfix.staging.place import stream_for


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


def test_copies_to_a_tensor_go_to_the_place_of_the_thread_that_makes_them() -> None:
    device = native.open_device("cpu")
    asked = stream_for(device.empty([1, 1, 2, 4], "int32"))
    for stream in (1, 2):
        with on_stream(device, stream):
            assert asked() == stream
