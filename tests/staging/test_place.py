"""The place of a thread: said by on_stream, nested, never seen by another thread."""

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place, on_stream, place
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


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is asked of torch once is asked anew."""
    place.stream_of_torch.cache_clear()
    monkeypatch.setattr(place, "place_of_thread", native.PlaceOfThread(place.find_torch))
    yield
    place.stream_of_torch.cache_clear()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("has_shortcuts", [True, False])
def test_torchs_device_and_stream_are_the_place_of_a_thread_that_names_none(
    has_shortcuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def current_device() -> int:
        """It also initialises CUDA."""
        asked.append("device")
        return 1

    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=current_device,
        current_stream=lambda index: SimpleNamespace(cuda_stream=7 + index),
    )
    shortcuts = {"_cuda_getDevice": lambda: 1, "_cuda_getCurrentRawStream": lambda index: 7 + index}
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=SimpleNamespace(**shortcuts if has_shortcuts else {}))
    )
    opened = native.open_device("cpu")
    monkeypatch.setattr(native, "open_device", lambda _: opened)
    assert [current_place() for _ in range(3)] == [(opened, 8)] * 3
    assert len(asked) == (1 if has_shortcuts else 4)
