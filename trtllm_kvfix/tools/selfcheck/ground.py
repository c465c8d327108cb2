"""What scenarios stand on: memory, streams, and a way to hold a stream. On a GPU that is torch's."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native

Table = npt.NDArray[np.int32]


class Unavailable(Exception):
    """This machine or build lacks what a scenario needs, so it says nothing."""


class Ground(Protocol):
    def stream(self) -> Any:
        """torch.cuda.Stream()"""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """torch.cuda.stream(stream)"""

    def on_device(self, shape: tuple[int, ...]) -> Any:
        """torch.zeros(shape, dtype=torch.int32, device="cuda")"""

    def pinned(self, shape: tuple[int, ...]) -> Any:
        """torch.zeros(shape, dtype=torch.int32, pin_memory=True)"""

    def lengths(self, values: list[int]) -> Any:
        """torch.tensor(values, dtype=torch.int)"""

    def held(self, stream: Any) -> AbstractContextManager[None]:
        """What is enqueued inside runs when the block has ended."""


class TorchGround:
    """Raises Unavailable where torch is missing or finds no GPU."""

    def __init__(self) -> None:
        try:
            import torch  # noqa: PLC0415  the package does without it
        except ImportError:
            raise Unavailable("torch is not installed") from None
        if not torch.cuda.is_available():
            raise Unavailable("torch finds no CUDA GPU")
        self._torch = torch
        self._device = native.open_device(f"cuda:{torch.cuda.current_device()}")

    def stream(self) -> Any:
        return self._torch.cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        chosen: AbstractContextManager[Any] = self._torch.cuda.stream(stream)
        return chosen

    def on_device(self, shape: tuple[int, ...]) -> Any:
        made = self._torch.zeros(shape, dtype=self._torch.int32, device="cuda")
        self._torch.cuda.synchronize()  # the zeros come on another stream than what a scenario writes there
        return made

    def pinned(self, shape: tuple[int, ...]) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.int32, pin_memory=True)

    def lengths(self, values: list[int]) -> Any:
        return self._torch.tensor(values, dtype=self._torch.int)

    @contextmanager
    def held(self, stream: Any) -> Iterator[None]:
        gate = self._device.close_gate(stream.cuda_stream)
        try:
            yield
        finally:
            self._device.open_gate(gate)
