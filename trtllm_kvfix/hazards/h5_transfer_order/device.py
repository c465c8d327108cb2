"""H5: blocks are stored and loaded on a copy stream, which must not run ahead of the stream that computes.

A *mover* is one way of doing so: copies that no event orders, ordered ones, or the whole offload connector. A scenario
says which work of the model meets them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, Lane, Side
from trtllm_kvfix.native import CopyEngine, Device, DeviceArray, PinnedArray
from trtllm_kvfix.offload.loop_tier import LoopTier, Scheduled

BLOCKS, BLOCK_WORDS = SHAPE = (8, 1024)
BLOCK_BYTES = BLOCK_WORDS * 4
BYTES = np.full(BLOCKS, BLOCK_BYTES, np.uint64)
TOKENS_PER_BLOCK = 4
TOKENS = BLOCKS * TOKENS_PER_BLOCK


def addresses(blocks: DeviceArray | PinnedArray) -> NDArray[np.uint64]:
    return np.uint64(blocks.address) + np.arange(BLOCKS, dtype=np.uint64) * np.uint64(BLOCK_BYTES)


class Streams(NamedTuple):
    device: Device
    compute: int
    copy: int
    blocks: DeviceArray


class Mover(ABC):
    ordered = True

    @abstractmethod
    def offer(self, contents: NDArray[np.uint32]) -> None:
        """Put into the host tier what the next load will bring. Nothing is pending."""

    @abstractmethod
    def store(self) -> None: ...
    @abstractmethod
    def load(self) -> None: ...

    @abstractmethod
    def stored(self) -> NDArray[np.uint32]:
        """What the last store has left in the host tier."""

    def over(self) -> bool:
        """Whether the last store or load is, as far as this mover knows of it."""
        return True

    def settle(self) -> None:  # noqa: B027  the streams know when copies are over
        """Wait until it is over."""

    def close(self) -> None:  # noqa: B027  not all own such things
        """Give back what the device does not free by itself."""


class Unordered(Mover):
    """Upstream: when the scheduler counts a block as computed, that is bookkeeping, and no edge between two streams."""

    ordered = False

    def __init__(self, streams: Streams, order: str) -> None:
        self.streams, self.order = streams, order
        self.host = streams.device.pinned(SHAPE, "uint32")

    def offer(self, contents: NDArray[np.uint32]) -> None:
        self.host.array[:] = contents

    def store(self) -> None:
        self.move(addresses(self.host), addresses(self.streams.blocks))

    def load(self) -> None:
        self.move(addresses(self.streams.blocks), addresses(self.host))

    def stored(self) -> NDArray[np.uint32]:
        return self.host.array.copy()

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None:
        self.streams.device.copy_batch(dst, src, BYTES, self.order, self.streams.copy)


class Ordered(Unordered):
    """The fix: the copy waits for the work that compute has got so far, and the work that compute gets next waits for
    the copy."""

    ordered = True

    def __init__(self, streams: Streams, order: str) -> None:
        super().__init__(streams, order)
        self.engine = CopyEngine(streams.device)
        self.computed = streams.device.create_event()

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None:
        compute, copy = self.streams.compute, self.streams.copy
        self.streams.device.record(self.computed, compute)
        self.engine.submit(dst, src, BYTES, after=self.computed, before=compute, stream=copy, order=self.order)

    def close(self) -> None:
        self.streams.device.destroy_event(self.computed)


class ConnectorMover(Mover):
    """Both sides of the offload connector, under as much of an executor's loop as they need.

    The control is the same connector with a stream on which nothing runs: its transfers are ordered behind nothing.
    """

    def __init__(self, streams: Streams, *, ordered: bool) -> None:
        self.ordered = ordered
        self._streams = streams
        self._computes = streams.compute if ordered else streams.copy  # as far as the connector knows
        # Two rounds fit: what the last one stored gives way to the next.
        self._tier = LoopTier(streams.device, streams.blocks, TOKENS_PER_BLOCK, 2 * BLOCKS, settle=lambda: None)
        self._contents = self._requests = 0

    def offer(self, contents: NDArray[np.uint32]) -> None:
        device, compute = self._streams.device, self._streams.compute
        device.upload(self._streams.blocks, contents, compute)
        self._store(compute)
        self.settle()

    def store(self) -> None:
        self._store(self._computes)

    def load(self) -> None:
        """For a request with the tokens of the last store."""
        if not self._tier.admitted(self._request(), 0, range(BLOCKS)):
            raise AssertionError("the host tier has nothing of a prompt that was stored")
        self._tier.step((), self._computes)

    def stored(self) -> NDArray[np.uint32]:
        self.load()
        self.settle()
        return self._streams.device.download(self._streams.blocks, self._streams.compute)

    def over(self) -> bool:
        return not self._tier.moves()

    def settle(self) -> None:
        """Both sides take note of the end, of which there may be none."""
        while self._tier.moves():
            pass
        self._tier.step((), self._computes)

    def close(self) -> None:
        self._tier.close()

    def _request(self) -> SimpleNamespace:
        """Requests of one content share their tokens."""
        self._requests += 1
        tokens = [self._contents, *range(1, TOKENS + 1)]
        return SimpleNamespace(
            request_id=self._requests, get_tokens=lambda _beam: list(tokens), lora_task_id=None, cache_salt_id=None,
            py_multimodal_data=None, sampling_config=SimpleNamespace(beam_width=1),
        )  # fmt: skip

    def _store(self, stream: int) -> None:
        """A request of new contents comes, and its whole prompt has been given to the device."""
        self._contents += 1
        request = self._request()
        self._tier.admitted(request, 0, range(BLOCKS))
        self._tier.step([Scheduled(request, TOKENS, 0, range(BLOCKS))], stream)


BuildMover: TypeAlias = Callable[[Streams], Mover]


class Work(str, Enum):
    """What the model does with the blocks."""

    WRITES = "kernel writes the blocks"
    CLEARS = "kernel clears the blocks"
    READS = "attention reads the blocks"


@dataclass(frozen=True)
class Race:
    """A transfer and work of the model: what the host enqueues first is behind the gate, and the other must wait."""

    name: str
    transfer: Literal["store", "load"]
    call: str
    variant: str
    work: Work
    transfer_first: bool
    title: str
    meanwhile: str  # in the control
    corrupt: str
    intact: str
    orders: tuple[str, ...] = ("any", "stream")  # when the driver may read sources: from the call on, or in their turn


class TransferArm(Arm):
    """A stream behind the gate, and one that is free to run ahead of it; one computes, and the other copies.

    The free stream waits for the held one only if the mover orders them. Without an edge, the arm waits for it while
    the gate is closed, so it has certainly run ahead. With an edge, the arm issues an unordered copy of the same size
    later and waits for that: work that is still not done then is held by its edge, and not merely slow.
    """

    def __init__(self, race: Race, build: BuildMover, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.race = race
        self.free, self.bystander = device.create_stream(), device.create_stream()
        self.held_done, self.followed = device.create_event(), device.create_event()
        self.blocks, self.seen, self.aside = (device.empty(SHAPE, "uint32") for _ in range(3))
        self.unrelated = device.pinned(SHAPE, "uint32")
        self.compute, copy = (self.free, self.held) if race.transfer_first else (self.held, self.free)
        self.mover = build(Streams(device, self.compute, copy, self.blocks))
        both = ("compute stream", race.work.value), ("copy stream", race.transfer)
        held, free = reversed(both) if race.transfer_first else both
        self.lanes = Lane(*held), Lane(*free, early=not self.mover.ordered)

    def draw(self) -> NDArray[np.uint32]:
        return self.random.integers(1, 1 << 32, SHAPE, np.uint32)

    def prepare(self) -> None:
        self.before, self.loaded = self.draw(), self.draw()
        self.written = 0 if self.race.work is Work.CLEARS else int(self.random.integers(1, 1 << 32))
        if self.race.transfer == "load":
            self.mover.offer(self.loaded)
        self.device.upload(self.blocks, self.before, self.held)

    def lead_in(self) -> None:
        if not self.race.transfer_first:
            self.compute_on_blocks()
            self.device.record(self.held_done, self.held)

    def call(self) -> None:
        if self.race.transfer == "store":
            self.mover.store()
        else:
            self.mover.load()

    def disturb(self) -> None:
        if self.race.transfer_first:
            self.device.record(self.held_done, self.held)
            self.compute_on_blocks()
        self.device.record(self.followed, self.free)
        if self.mover.ordered:
            self.device.copy_batch(addresses(self.aside), addresses(self.unrelated), BYTES, "stream", self.bystander)
            self.device.synchronize(self.bystander)
        else:
            self.wait_free()

    def compute_on_blocks(self) -> None:
        """Read or write the blocks as the model does, as far as order goes."""
        if self.race.work is Work.READS:
            self.device.copy(self.seen.address, self.blocks.address, self.blocks.nbytes, self.compute)
        else:
            self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, self.written, self.compute)

    def waiting(self) -> bool:
        return super().waiting() and not (self.mover.ordered and self.device.done(self.followed) and self.mover.over())

    def wait_held(self) -> None:
        self.device.wait(self.held_done)

    def wait_free(self) -> None:
        self.device.wait(self.followed)
        self.mover.settle()

    def settle(self) -> None:
        self.mover.settle()
        for stream in (self.held, self.free, self.bystander):
            self.device.synchronize(stream)

    def compare(self) -> Comparison:
        """What is first must find the blocks as they were, and what follows must find what the first has left."""
        first = self.race.transfer_first
        if self.race.transfer == "store":
            written = np.full(SHAPE, self.written, np.uint32)
            return Comparison(self.before if first else written, self.mover.stored())
        if self.race.work is Work.READS:
            return Comparison(self.loaded if first else self.before, self.device.download(self.seen, self.held))
        return Comparison(self.loaded, self.device.download(self.blocks, self.held))

    def close(self) -> None:
        self.mover.close()
        for event in (self.held_done, self.followed):
            self.device.destroy_event(event)
        for stream in (self.free, self.bystander):
            self.device.destroy_stream(stream)
        super().close()


STORE = partial(Race, "store-order", "store", "the store of the blocks is issued")
LOAD = partial(Race, "load-order", "load", "the load of the blocks is issued")
STORE_BEHIND_WRITER = STORE(
    "writer",
    Work.WRITES,
    transfer_first=False,
    title="Store: blocks are saved while the kernel that writes them is queued",
    meanwhile="the store is over, and nothing has written the blocks yet",
    corrupt="the kernel writes the blocks; what was saved is what was there before",
    intact="the kernel writes the blocks, then the store saves them",
)
LOAD_BEHIND_READER = LOAD(
    "reader",
    Work.READS,
    transfer_first=False,
    title="Load: blocks are filled while attention that reads their last contents is queued",
    meanwhile="the load is over, and nobody has read the blocks yet",
    corrupt="attention runs and reads what was loaded for somebody else",
    intact="attention reads the blocks, then the load fills them",
)
COPIES = (
    STORE_BEHIND_WRITER,
    STORE(
        "early writer",
        Work.WRITES,
        transfer_first=True,
        title="Store: blocks are written for their next owner while the store of their contents is queued",
        meanwhile="the kernel of the next owner is over, and nothing has been saved yet",
        corrupt="the store saves what belongs to the next owner",
        intact="the store saves the blocks, then the next owner's kernel writes them",
        orders=("stream",),  # ANY lets the driver read the blocks early, which saves a control now and then
    ),
    LOAD_BEHIND_READER,
    LOAD(
        "zeroing",
        Work.CLEARS,
        transfer_first=False,
        title="Load: blocks are filled while the kernel that clears them is queued",
        meanwhile="the load is over, and the blocks have not been cleared yet",
        corrupt="the kernel clears the blocks; what was loaded is gone",
        intact="the kernel clears the blocks, then the load fills them",
    ),
    LOAD(
        "early reader",
        Work.READS,
        transfer_first=True,
        title="Load: attention reads the blocks while the load that fills them is queued",
        meanwhile="attention is over, and nothing has been loaded yet",
        corrupt="the load fills the blocks; attention has read what was there before",
        intact="the load fills the blocks, then attention reads them",
    ),
)
STORED_BY_CONNECTOR = replace(
    STORE_BEHIND_WRITER,
    name="connector-store",
    title="Connector: a prompt goes to the host tier while the kernels that write its blocks are queued",
    call="the connector learns that the prompt has been computed",
)
LOADED_BY_CONNECTOR = replace(
    LOAD_BEHIND_READER,
    name="connector-load",
    title="Connector: a prompt comes back into blocks that queued attention reads for their last owner",
    call="the connector learns where the prompt's blocks are",
)


class Way(NamedTuple):
    mover: BuildMover
    how: str


def no_event(order: str) -> Way:
    how = "As in connectors before their fix: no event orders the streams."
    return Way(partial(Unordered, order=order), f"{how} Source order {order.upper()}.")


def event(order: str, how: str = "An event orders the streams.") -> Way:
    return Way(partial(Ordered, order=order), f"{how} Source order {order.upper()}.")


HALF = event("any", "An event orders the streams, but the driver may read the sources of the store before their turn.")
ON_AN_IDLE_STREAM = Way(
    partial(ConnectorMover, ordered=False), "The same connector, given a stream on which nothing runs."
)
CONNECTOR = Way(
    partial(ConnectorMover, ordered=True),
    "The connector marks the stream that computes, and its copy stream waits for the mark.",
)


def case(race: Race, variant: str, kind: ControlKind, control: Way, fixed: Way, half: Way | None = None) -> Case:
    def side(way: Way, meanwhile: str, effect: str) -> Side:
        return Side(partial(TransferArm, race, way.mover), way.how, meanwhile, effect)

    held = "an unordered copy, issued later, is over: only the edge holds this one"
    early = "the kernel writes, then the store runs, unless its sources were read early"
    return Case(
        name=race.name,
        variant=variant,
        hazard="H5",
        title=race.title,
        call=race.call,
        control_kind=kind,
        control=side(control, race.meanwhile, race.corrupt),
        fixed=side(fixed, held, race.intact),
        half=half and side(half, held, early),
    )


def copies(race: Race, order: str) -> Case:
    # Where the source itself is being written, the fix needs STREAM as well, whatever the control took.
    needs_stream = race is STORE_BEHIND_WRITER
    fixed = event("stream" if needs_stream else order)
    half = HALF if needs_stream and order == "any" else None
    return case(race, f"{race.variant}, {order}", ControlKind.NO_EVENT, no_event(order), fixed, half)


CASES = (
    *(copies(race, order) for race in COPIES for order in race.orders),
    *(
        case(race, race.variant, ControlKind.WRONG_STREAM, ON_AN_IDLE_STREAM, CONNECTOR)
        for race in (STORED_BY_CONNECTOR, LOADED_BY_CONNECTOR)
    ),
)
