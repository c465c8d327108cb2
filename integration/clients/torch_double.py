"""torch.cuda over the stand-in's simulated device, for a torch that has no CUDA. Needs torch.

The clients' copies are made by the host: by LMCache's own fallback for CPUs inside `torch.cuda.stream`, by KVBM's
threads behind an event. So the host waits for a stream where it enters one, and for what an event is recorded behind.
A copy on a stream keeps the order that the client asked for; one of KVBM's is never too early, as it may be on a GPU.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class Event:
    """Done as soon as it is recorded."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors
        self.cuda_event = id(self)

    def record(self, stream: Any = None) -> None:
        (self._tensors.current_stream() if stream is None else stream).synchronize()


def install(tensors: Any) -> None:
    cuda: Any = torch.cuda

    @contextmanager
    def inside(stream: Any) -> Iterator[None]:
        stream.synchronize()
        with tensors.on(stream):
            yield

    class Stream:
        """A class, because annotations name it; what it makes is a stream of the stand-in."""

        def __new__(cls, device: Any = None) -> Any:  # noqa: ARG004  torch's
            return tensors.stream()

    cuda.Stream = Stream
    cuda.Event = lambda **_: Event(tensors)
    cuda.current_stream = lambda *_: tensors.current_stream()
    cuda.stream = inside


class OnDevice(torch.Tensor):  # type: ignore[misc]  # torch has no types here
    """Says that it is on a GPU, for callers that ask for the GPU's number."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


def as_torch(pool: Any, kind: type[torch.Tensor] | None) -> torch.Tensor:
    """The stand-in's pool under its own address, as numbers of the same size."""
    words = (ctypes.c_int32 * pool.numel()).from_address(pool.data_ptr())
    tensor = torch.from_numpy(np.ctypeslib.as_array(words)).view(torch.float32).view(pool.shape)
    return tensor if kind is None else tensor.as_subclass(kind)
