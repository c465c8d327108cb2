"""The ground of the stand-in: its tensors over the simulated device."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from trtllm_kvfix.hazards.ground import Ground


class StandInGround(Ground):
    """Made where the stand-in is imported."""

    def __init__(self) -> None:
        self._tensors = import_module("tensorrt_llm._standin.tensors").tensors()

    def stream(self) -> Any:
        return self._tensors.stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        chosen: AbstractContextManager[Any] = self._tensors.on(stream)
        return chosen

    def on_device(self, shape: tuple[int, ...]) -> Any:
        return self._tensors.on_device(*shape)

    def pinned(self, shape: tuple[int, ...]) -> Any:
        return self._tensors.pinned(*shape)

    def lengths(self, values: list[int]) -> list[int]:
        return values

    def read(self, target: Any, source: Any) -> None:
        target.copy_(source, non_blocking=True)

    @contextmanager
    def held(self, stream: Any) -> Iterator[None]:
        gate = self._tensors.close_gate(stream)
        try:
            yield
        finally:
            self._tensors.open_gate(gate)
