"""H7 on a simulated device: a step's inputs are copied out of a pinned buffer, and the next step writes it again."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from trtllm_kvfix.hazards.case import Arm, Comparison, Lane
from trtllm_kvfix.hazards.host_thread import HostThread
from trtllm_kvfix.hazards.simulated import trial
from trtllm_kvfix.native import Device

WORDS = 64


class FenceUnderTest(Protocol):
    """A fix that lets the loop go on once the device has read the last step's inputs."""

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]: ...
    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]: ...


class Loop(Arm):
    """Inputs of a step are prepared; then the loop schedules the next one, which may write any host buffer."""

    def __init__(self, fence: FenceUnderTest, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.buffer, self.inputs = device.pinned((WORDS,), "uint32"), device.empty((WORDS,), "uint32")
        self._host = HostThread(device, self.held)  # one thread for both: a fence may keep its marks by thread
        self._prepare, self._schedule = fence.recording(self._copy), fence.waiting(self._write)

    def lanes(self) -> tuple[Lane, ...]:
        return Lane("stream", "copy"), Lane("next step", "writes the buffer")

    def prepare(self) -> None:
        self.steps = self.random.integers(1, 1 << 32, (2, WORDS), np.uint32)

    def call(self) -> None:
        self._host.do(lambda: self._prepare("engine"))

    def disturb(self) -> None:
        self._host.begin(lambda: self._schedule("executor"))

    def waiting(self) -> bool:
        return self._host.waits()

    def settle(self) -> None:
        super().settle()
        self._host.finish()

    def compare(self) -> Comparison:
        """The device had to find the first step's inputs; in the end the second step's are in the buffer."""
        return Comparison(self.steps, np.stack([self.device.download(self.inputs, self.held), self.buffer.array]))

    def close(self) -> None:
        self._host.close()
        super().close()

    def _copy(self, _engine: Any) -> None:
        self.buffer.array[:] = self.steps[0]
        self.device.copy(self.inputs.address, self.buffer.address, self.buffer.nbytes, self.held)

    def _write(self, _executor: Any) -> None:
        self.buffer.array[:] = self.steps[1]


def self_test(build: Callable[[], FenceUnderTest]) -> None:
    trial(lambda device: Loop(build(), device, 0))
