"""A scenario in four verbs, the same on every ground, and the cases of `verify`: two arms that play one scenario."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from trtllm_kvfix.native import Device


class ControlKind(str, Enum):
    """The kind of a control, so that a report claims no more than it shows: only the first is what upstream does."""

    UPSTREAM = "upstream's order"
    REPAIR = "obvious repair"
    NO_EVENT = "no event"
    WRONG_STREAM = "wrong stream"

    @property
    def said(self) -> str:
        return _SAID[self]


_SAID = {
    ControlKind.UPSTREAM: "in upstream's order",
    ControlKind.REPAIR: "with the obvious repair of upstream's order",
    ControlKind.NO_EVENT: "with copies that no event orders behind the kernels, as in connectors before their fix",
    ControlKind.WRONG_STREAM: "with this package's connector, given a stream on which nothing runs",
}


class Comparison(NamedTuple):
    """The expected contents of a destination, from the source at the moment of the call, and its actual contents."""

    expected: Any  # an array of words on a device; on other grounds whatever its scenario compares
    found: Any


@dataclass(frozen=True)
class Lane:
    """A stream on the timeline. Work that is not early was enqueued behind the gate, or waited for what was."""

    name: str
    work: str
    early: bool = False


class Played(ABC):
    """A scenario on some ground: who writes, who reads, and what is right. `played` holds the stream in between."""

    def prepare(self) -> None:  # noqa: B027  a ground may have nothing to draw
        """Draw new contents. Nothing is pending."""

    def lead_in(self) -> None:  # noqa: B027  most have nothing there
        """Enqueue what the operation under test meets: work of the model."""

    @abstractmethod
    def call(self) -> None:
        """The operation under test, as the host would call it."""

    def mark(self) -> None:  # noqa: B027  not every ground can look at work that is pending
        """Note where the work of the call ends, for `waiting`."""

    @abstractmethod
    def disturb(self) -> None:
        """Act while the device is held: let the host go on, or a stream run ahead."""

    def waiting(self) -> bool:
        """Whether the work that must wait does wait, while the device is held."""
        return True

    def wait_held(self) -> None:  # noqa: B027  where nobody looks at single waits, `settle` does
        """The stream goes on: wait for the work that was held, but not for work that waits for that in turn."""

    def wait_free(self) -> None:  # noqa: B027  most have one stream
        """Wait for what another stream does in the end."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for everything that was enqueued."""

    @abstractmethod
    def compare(self) -> Comparison:
        """Read the destinations back. Everything has settled."""


def played(
    scenario: Played, held: AbstractContextManager[object], note: Callable[[str], object] = lambda _moment: None
) -> tuple[Comparison, bool]:
    """Play it once. Returns what arrived beside what is right, and whether what must wait did wait. `note` is told of
    the moments, in their order."""
    scenario.prepare()
    scenario.settle()
    with held:
        note("closed")
        scenario.lead_in()
        note("call")
        scenario.call()
        note("returned")
        scenario.mark()
        note("disturb")
        scenario.disturb()
        note("disturbed")
        waited = scenario.waiting()
        note("opened")
    scenario.wait_held()
    note("held_done")
    scenario.wait_free()
    note("done")
    scenario.settle()
    return scenario.compare(), waited


ArmT = TypeVar("ArmT", bound="Arm")


class Arm(Played):
    """One way of doing the work on a device, made once and used for every iteration.

    From lead_in to disturb a gate holds the stream `held`, so none of them may wait for that stream. The device owns
    whatever was enqueued until the gate has been opened and `settle` has returned.
    """

    lanes: tuple[Lane, ...] = (Lane("stream", "copy"),)  # the streams of this arm, for the timeline

    def __init__(self, device: Device, seed: int) -> None:
        self.device = device
        self.random = np.random.default_rng(seed)
        self.held = device.create_stream()
        self._called = device.create_event()

    def __enter__(self: ArmT) -> ArmT:
        return self

    def __exit__(self, *_: object) -> None:
        """It has drained then, so that nothing of it can touch the next one."""
        self.settle()
        self.close()

    def mark(self) -> None:
        self.device.record(self._called, self.held)

    def waiting(self) -> bool:
        return not self.device.done(self._called)

    def wait_held(self) -> None:
        self.device.synchronize(self.held)

    def settle(self) -> None:
        self.device.synchronize(self.held)

    def close(self) -> None:
        """Give back what the device does not free by itself. Everything has settled."""
        self.device.destroy_event(self._called)
        self.device.destroy_stream(self.held)


@dataclass(frozen=True)
class Side:
    """An arm, and the words for what it does."""

    build: Callable[[Device, int], Arm]
    how: str
    meanwhile: str  # what disturb() stands for
    effect: str  # what the device does once the gate is open


class NotShown(NamedTuple):
    """Why a case has nothing to show here."""

    why: str
    looked: bool  # whether this device was asked, and does it right; or else it cannot be asked


@dataclass(frozen=True)
class Case:
    name: str  # what --case takes; several cases may share it
    variant: str
    hazard: str
    title: str
    call: str  # what call() stands for
    control_kind: ControlKind
    control: Side  # corrupts, or the case shows nothing
    fixed: Side  # never corrupts
    half: Side | None = None  # half of the fix: what it lets through depends on the device, so it is shown, not judged
    # Asked before its arms run: it waits for all streams.
    not_shown: Callable[[Device], NotShown | None] = lambda _: None
