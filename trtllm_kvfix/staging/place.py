"""Place at which this thread enqueues work: a device and one of its streams.

On a GPU that is torch's current stream. For memory of our own there is no torch to ask, so the thread names it:

    with on_stream(device, stream):
        manager.copy_batch_block_offsets(...)
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

from trtllm_kvfix import native


class StreamPlace(NamedTuple):
    device: native.Device
    stream: int


@contextmanager
def on_stream(device: native.Device, stream: int) -> Iterator[None]:
    """Like `torch.cuda.stream` for tensors: it nests, and holds for this thread only."""
    outer = native.PlaceOfThread.name((device, stream))
    try:
        yield
    finally:
        native.PlaceOfThread.name(outer)


def current_place() -> StreamPlace:
    """Raise RuntimeError if neither `on_stream` nor torch names a device."""
    return StreamPlace(*place_of_thread.now())


def stream_for(tensor: Any) -> Callable[[], int]:
    """Returns what asks for the stream on which this thread copies to the tensor."""
    if not getattr(tensor, "is_cuda", False):
        return lambda: current_place().stream
    return partial(stream_of_torch(), int(tensor.device.index))


@cache
def stream_of_torch() -> Callable[[int], int]:
    """Asks torch for the number of a device's current stream, by a shortcut if torch has one: making a
    `torch.cuda.Stream` to read the number takes longer than all of a shipment but the driver's calls."""
    import torch  # noqa: PLC0415  only where tensors are

    shortcut: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return shortcut or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


def find_torch() -> tuple[Callable[[], int], Callable[[int], int], Callable[[int], native.Device]]:
    return _device_of_torch(), stream_of_torch(), lambda index: native.open_device(f"cuda:{index}")


def _device_of_torch() -> Callable[[], int]:
    """Asks torch for the number of this thread's device, past the question whether CUDA has been initialised, which
    torch takes longer to answer."""
    cuda = _torch_cuda()
    cuda.current_device()
    shortcut: Callable[[], int] | None = getattr(sys.modules["torch"]._C, "_cuda_getDevice", None)
    return shortcut or cuda.current_device


def _torch_cuda() -> Any:
    try:
        import torch  # noqa: PLC0415  only where tensors are
    except ImportError:
        raise RuntimeError("no device: torch is not installed and this thread is not inside on_stream()") from None
    if not torch.cuda.is_available():
        raise RuntimeError("no device: torch finds no CUDA device and this thread is not inside on_stream()")
    return torch.cuda


place_of_thread = native.PlaceOfThread(find_torch)
