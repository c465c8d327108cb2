"""H5: blocks are stored and loaded on a copy stream, which must not run ahead of the stream that computes.

A *mover* is one way of doing so: copies that no event orders, ordered ones, or the whole offload connector. A scenario
says which work of the model meets them.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, Lane, Side
from trtllm_kvfix.native import CopyEngine, Device, DeviceArray, HostPool, PinnedArray
from trtllm_kvfix.offload.ledger import Link
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank

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


def made_pool(pools: list[HostPool], device: Device, block_bytes: int, _: object) -> HostPool:
    # Two rounds fit: what the last one stored gives way to the next.
    pools.append(HostPool(device, host_bytes=2 * BLOCKS * block_bytes, block_bytes=block_bytes))
    return pools[-1]


class ConnectorMover(Mover):
    """Both sides of the offload connector, its host pool, lanes and index, and as much of an executor as they need.

    The control is the same connector with a stream on which nothing runs: its transfers are ordered behind nothing.
    """

    def __init__(self, streams: Streams, *, ordered: bool) -> None:
        self.ordered = ordered
        self._streams = streams
        self._computes = streams.compute if ordered else streams.copy  # as far as the connector knows
        settings, self._link = OffloadSettings(), Link()
        self._pools: list[HostPool] = []
        self._worker = OffloadWorker(settings, self._link, OneRank(), partial(made_pool, self._pools))
        self._worker.register(streams.device, [streams.blocks])
        self._scheduler = OffloadScheduler(settings, TOKENS_PER_BLOCK, self._link, Switches(None))
        self._contents = self._requests = 0
        self._pending = False

    def offer(self, contents: NDArray[np.uint32]) -> None:
        device, compute = self._streams.device, self._streams.compute
        device.upload(self._streams.blocks, contents, compute)
        self._store(compute)
        self.settle()

    def store(self) -> None:
        self._store(self._computes)

    def load(self) -> None:
        """For a request with the tokens of the last store."""
        request = self._request()
        tokens, is_async = self._scheduler.get_num_new_matched_tokens(request, 0)
        if (tokens, is_async) != (TOKENS, True):
            raise AssertionError(f"the host tier has {tokens} tokens of a prompt whose {TOKENS} were stored")
        self._scheduler.update_state_after_alloc(request, [list(range(BLOCKS))])
        self._begin(None, self._computes)

    def stored(self) -> NDArray[np.uint32]:
        (pool,) = self._pools
        words = (ctypes.c_uint32 * (pool.bytes // 4)).from_address(pool.address)
        slots: NDArray[np.uint32] = np.ctypeslib.as_array(words).reshape(-1, BLOCK_WORDS)
        return slots[list(self._step.stores[0].slots)].copy()

    def over(self) -> bool:
        self._worker.finished([], [])
        return bool(self._link.ledger.ended)

    def settle(self) -> None:
        """Both sides take note of the end, of which there may be none."""
        while self._pending and not self.over():
            pass
        self._pending = False
        self._scheduler.build_connector_meta(None)

    def close(self) -> None:
        self._worker.close()

    def _request(self) -> SimpleNamespace:
        """Requests of one content share their tokens."""
        self._requests += 1
        tokens = [self._contents, *range(1, TOKENS + 1)]
        return SimpleNamespace(
            request_id=self._requests, get_tokens=lambda _beam: list(tokens), lora_task_id=None, cache_salt_id=None,
            py_multimodal_data=None, sampling_config=SimpleNamespace(beam_width=1),
        )  # fmt: skip

    def _store(self, stream: int) -> None:
        """The report of a request of new contents, whose whole prompt has been given to the device."""
        self._contents += 1
        request = self._request()
        self._scheduler.get_num_new_matched_tokens(request, 0)
        self._scheduler.update_state_after_alloc(request, [list(range(BLOCKS))])
        report = SimpleNamespace(
            request_id=request.request_id, new_tokens=request.get_tokens(0), new_block_ids=list(range(BLOCKS)),
            computed_position=TOKENS,
        )  # fmt: skip
        self._begin(SimpleNamespace(new_requests=[report], cached_requests=[]), stream)

    def _begin(self, report: SimpleNamespace | None, stream: int) -> None:
        self._step = self._scheduler.build_connector_meta(report)
        self._worker.bind(self._step)
        self._worker.start(stream)
        self._pending = True


BuildMover: TypeAlias = Callable[[Streams], Mover]


class TransferArm(Arm):
    """A stream behind the gate, and one that is free to run ahead of it; one computes, and the other copies.

    The free stream waits for the held one only if the mover orders them. Without an edge, the arm waits for it while
    the gate is closed, so it has certainly run ahead. With an edge, the arm issues an unordered copy of the same size
    later and waits for that: work that is still not done then is held by its edge, and not merely slow.
    """

    holds_copy: ClassVar[bool] = False  # which of the two streams is behind the gate
    held_work: ClassVar[str]
    free_work: ClassVar[str]

    def __init__(self, device: Device, seed: int, build: BuildMover) -> None:
        super().__init__(device, seed)
        self.free, self.bystander = device.create_stream(), device.create_stream()
        self.held_done, self.followed = device.create_event(), device.create_event()
        self.seen, self.aside = (device.empty(SHAPE, "uint32") for _ in range(2))
        self.unrelated = device.pinned(SHAPE, "uint32")
        self.compute, copy = (self.free, self.held) if self.holds_copy else (self.held, self.free)
        self.blocks = device.empty(SHAPE, "uint32")
        self.mover = build(Streams(device, self.compute, copy, self.blocks))

    def lanes(self) -> tuple[Lane, ...]:
        held, free = ("copy", "compute") if self.holds_copy else ("compute", "copy")
        return Lane(f"{held} stream", self.held_work), Lane(f"{free} stream", self.free_work, not self.mover.ordered)

    def draw(self) -> NDArray[np.uint32]:
        return self.random.integers(1, 1 << 32, SHAPE, np.uint32)

    def follow(self) -> None:
        """Enqueue what uses the blocks after the call."""

    def disturb(self) -> None:
        self.follow()
        self.device.record(self.followed, self.free)
        if self.mover.ordered:
            self.device.copy_batch(addresses(self.aside), addresses(self.unrelated), BYTES, "stream", self.bystander)
            self.device.synchronize(self.bystander)
        else:
            self.wait_free()

    def waiting(self) -> bool:
        return not self.mover.ordered or not (self.device.done(self.followed) and self.mover.over())

    def held_work_ends(self) -> None:
        """Call this behind the work of the held stream, before that stream is made to wait for the other."""
        self.device.record(self.held_done, self.held)

    def wait_held(self) -> None:
        self.device.wait(self.held_done)

    def wait_free(self) -> None:
        self.device.wait(self.followed)
        self.mover.settle()

    def settle(self) -> None:
        self.mover.settle()
        for stream in (self.held, self.free, self.bystander):
            self.device.synchronize(stream)

    def write_blocks(self, value: int) -> None:
        self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, value, self.compute)

    def read_blocks(self) -> None:
        """Read the blocks as attention does, as far as order goes."""
        self.device.copy(self.seen.address, self.blocks.address, self.blocks.nbytes, self.compute)

    def close(self) -> None:
        self.mover.close()
        for event in (self.held_done, self.followed):
            self.device.destroy_event(event)
        for stream in (self.free, self.bystander):
            self.device.destroy_stream(stream)
        super().close()


class StoreBehindWriter(TransferArm):
    """A store is issued while the kernel that writes the blocks is queued."""

    held_work, free_work = "kernel writes the blocks", "store"

    def prepare(self) -> None:
        self.before, self.value = self.draw(), int(self.random.integers(1, 1 << 32))
        self.device.upload(self.blocks, self.before, self.held)

    def lead_in(self) -> None:
        self.write_blocks(self.value)
        self.held_work_ends()

    def call(self) -> None:
        self.mover.store()

    def compare(self) -> Comparison:
        return Comparison(np.full(SHAPE, self.value, np.uint32), self.mover.stored())


class StoreBeforeWriter(StoreBehindWriter):
    """Compute writes for the next owner of blocks whose store is queued."""

    holds_copy = True
    held_work, free_work = "store", "kernel writes the blocks"

    def lead_in(self) -> None:
        """Nothing is queued before the store."""

    def follow(self) -> None:
        self.held_work_ends()
        self.write_blocks(self.value)

    def compare(self) -> Comparison:
        return Comparison(self.before, self.mover.stored())


class LoadBehindReader(TransferArm):
    """A load is issued into blocks that compute still reads for their last owner."""

    held_work, free_work = "attention reads the blocks", "load"

    def prepare(self) -> None:
        self.before, self.loaded = self.draw(), self.draw()
        self.mover.offer(self.loaded)
        self.device.upload(self.blocks, self.before, self.held)
        self.device.upload(self.seen, np.zeros(SHAPE, np.uint32), self.held)

    def lead_in(self) -> None:
        self.read_blocks()
        self.held_work_ends()

    def call(self) -> None:
        self.mover.load()

    def compare(self) -> Comparison:
        return Comparison(self.before, self.device.download(self.seen, self.held))


class LoadBehindZeroing(LoadBehindReader):
    """A load is issued into blocks that compute is about to clear for their new owner."""

    held_work, free_work = "kernel clears the blocks", "load"

    def lead_in(self) -> None:
        self.write_blocks(0)
        self.held_work_ends()

    def compare(self) -> Comparison:
        return Comparison(self.loaded, self.device.download(self.blocks, self.held))


class LoadBeforeReader(LoadBehindReader):
    """Compute reads blocks whose load is queued."""

    holds_copy = True
    held_work, free_work = "load", "attention reads the blocks"

    def lead_in(self) -> None:
        """Nothing is queued before the load."""

    def follow(self) -> None:
        self.held_work_ends()
        self.read_blocks()

    def compare(self) -> Comparison:
        return Comparison(self.loaded, self.device.download(self.seen, self.held))


class Words(NamedTuple):
    name: str
    variant: str
    arm: type[TransferArm]
    title: str
    call: str
    meanwhile: str  # in the control
    corrupt: str
    intact: str
    orders: tuple[str, ...] = ("any", "stream")  # when the driver may read sources: from the call on, or in their turn


COPIES = (
    Words(
        "store-order",
        "writer",
        StoreBehindWriter,
        "Store: blocks are saved while the kernel that writes them is queued",
        "the store of the blocks is issued",
        "the store is over, and nothing has written the blocks yet",
        "the kernel writes the blocks; what was saved is what was there before",
        "the kernel writes the blocks, then the store saves them",
    ),
    Words(
        "store-order",
        "early writer",
        StoreBeforeWriter,
        "Store: blocks are written for their next owner while the store of their contents is queued",
        "the store of the blocks is issued",
        "the kernel of the next owner is over, and nothing has been saved yet",
        "the store saves what belongs to the next owner",
        "the store saves the blocks, then the next owner's kernel writes them",
        orders=("stream",),  # ANY lets the driver read the blocks early, which saves a control now and then
    ),
    Words(
        "load-order",
        "reader",
        LoadBehindReader,
        "Load: blocks are filled while attention that reads their last contents is queued",
        "the load of the blocks is issued",
        "the load is over, and nobody has read the blocks yet",
        "attention runs and reads what was loaded for somebody else",
        "attention reads the blocks, then the load fills them",
    ),
    Words(
        "load-order",
        "zeroing",
        LoadBehindZeroing,
        "Load: blocks are filled while the kernel that clears them is queued",
        "the load of the blocks is issued",
        "the load is over, and the blocks have not been cleared yet",
        "the kernel clears the blocks; what was loaded is gone",
        "the kernel clears the blocks, then the load fills them",
    ),
    Words(
        "load-order",
        "early reader",
        LoadBeforeReader,
        "Load: attention reads the blocks while the load that fills them is queued",
        "the load of the blocks is issued",
        "attention is over, and nothing has been loaded yet",
        "the load fills the blocks; attention has read what was there before",
        "the load fills the blocks, then attention reads them",
    ),
)
THROUGH_CONNECTOR = (
    Words(
        "connector-store",
        "writer",
        StoreBehindWriter,
        "Connector: a prompt goes to the host tier while the kernels that write its blocks are queued",
        "the connector learns that the prompt has been computed",
        "the store is over, and the compute stream has not begun",
        "the kernel writes the blocks; the host tier keeps what was there before",
        "the kernel writes the blocks, then they are stored",
    ),
    Words(
        "connector-load",
        "reader",
        LoadBehindReader,
        "Connector: a prompt comes back into blocks that queued attention reads for their last owner",
        "the connector learns where the prompt's blocks are",
        "the load is over, and the compute stream has not begun",
        "attention runs and reads what was loaded for somebody else",
        "attention reads the blocks, then they are loaded",
    ),
)


def build(arm: type[TransferArm], mover: BuildMover, device: Device, seed: int) -> TransferArm:
    return arm(device, seed, mover)


def copies(words: Words, order: str) -> Case:
    # Where the source itself is being written, the fix needs STREAM as well, whatever the control took.
    needs_stream = words.arm is StoreBehindWriter

    def ordered(order: str, effect: str, how: str = "An event orders the streams.") -> Side:
        meanwhile = "an unordered copy, issued later, is over: only the edge holds this one"
        mover = partial(Ordered, order=order)
        return Side(partial(build, words.arm, mover), f"{how} Source order {order.upper()}.", meanwhile, effect)

    half = ordered(
        "any",
        "the kernel writes, then the store runs, unless its sources were read early",
        "An event orders the streams, but the driver may read the sources of the store before their turn.",
    )
    return Case(
        name=words.name,
        variant=f"{words.variant}, {order}",
        hazard="H5",
        title=words.title,
        call=words.call,
        control_kind=ControlKind.NO_EVENT,
        control=Side(
            partial(build, words.arm, partial(Unordered, order=order)),
            f"As in connectors before their fix: no event orders the streams. Source order {order.upper()}.",
            words.meanwhile,
            words.corrupt,
        ),
        fixed=ordered("stream" if needs_stream else order, words.intact),
        half=half if needs_stream and order == "any" else None,
    )


def through_connector(words: Words) -> Case:
    return Case(
        name=words.name,
        variant=words.variant,
        hazard="H5",
        title=words.title,
        call=words.call,
        control_kind=ControlKind.WRONG_STREAM,
        control=Side(
            partial(build, words.arm, partial(ConnectorMover, ordered=False)),
            "The same connector, given a stream on which nothing runs.",
            words.meanwhile,
            words.corrupt,
        ),
        fixed=Side(
            partial(build, words.arm, partial(ConnectorMover, ordered=True)),
            "The connector marks the stream that computes, and its copy stream waits for the mark.",
            "an unordered copy, issued later, is over: only the mark holds this one",
            words.intact,
        ),
    )


CASES = (
    *(copies(words, order) for words in COPIES for order in words.orders),
    *map(through_connector, THROUGH_CONNECTOR),
)
