"""H7 on a simulated device: a step's inputs are copied out of a pinned buffer, and the next step writes it again."""

from collections.abc import Callable
from typing import Any, Protocol

from trtllm_kvfix.hazards.loop_arm import LoopArm
from trtllm_kvfix.hazards.simulated import trial
from trtllm_kvfix.native import Device

WORDS = 64


class FenceUnderTest(Protocol):
    """A fix that lets the loop go on once the device has read the last step's inputs."""

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]: ...
    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]: ...


class Loop(LoopArm):
    """Inputs of a step are prepared; then the loop schedules the next one, which may write any host buffer."""

    def __init__(self, fence: FenceUnderTest, device: Device, seed: int) -> None:
        super().__init__(device, seed, (WORDS,))
        self._prepare, self._schedule = fence.recording(self._copy), fence.waiting(self._write)

    def call(self) -> None:
        self.in_loop(lambda: self._prepare("engine"))  # one thread for both: a fence may keep its marks by thread

    def write_next(self) -> None:
        self._schedule("executor")

    def _copy(self, _engine: Any) -> None:
        self.table.array[:] = self.steps[0]
        self.device.copy(self.seen.address, self.table.address, self.table.nbytes, self.held)

    def _write(self, _executor: Any) -> None:
        self.table.array[:] = self.steps[1]


def self_test(build: Callable[[], FenceUnderTest]) -> None:
    trial(lambda device: Loop(build(), device, 0))
