"""H5: blocks are stored and loaded on a copy stream, which must not run ahead of the stream that computes."""

import ctypes
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, Lane, Side
from trtllm_kvfix.native import CopyEngine, Device, DeviceArray, HostPool, PinnedArray
from trtllm_kvfix.offload.link import Link
from trtllm_kvfix.offload.plan import Step
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank

BLOCKS, BLOCK_WORDS = SHAPE = (8, 1024)
BLOCK_BYTES = BLOCK_WORDS * 4
BYTES = np.full(BLOCKS, BLOCK_BYTES, np.uint64)


def addresses(blocks: DeviceArray | PinnedArray) -> NDArray[np.uint64]:
    return np.uint64(blocks.address) + np.arange(BLOCKS, dtype=np.uint64) * np.uint64(BLOCK_BYTES)


class Mover(Protocol):
    """One way of copying blocks on the copy stream."""

    ordered: bool

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None: ...
    def close(self) -> None: ...


class Unordered:
    """Upstream: when the scheduler counts a block as computed, that is bookkeeping, and no edge between two streams."""

    ordered = False

    def __init__(self, device: Device, compute: int, copy: int, *, order: str) -> None:  # noqa: ARG002  that is the bug
        self.device, self.copy, self.order = device, copy, order

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None:
        self.device.copy_batch(dst, src, BYTES, self.order, self.copy)

    def close(self) -> None:
        """Nothing is owned here."""


class Ordered:
    """The fix: the copy waits for the work that compute has got so far, and the work that compute gets next waits for
    the copy."""

    ordered = True

    def __init__(self, device: Device, compute: int, copy: int, *, order: str) -> None:
        self.device, self.compute, self.copy, self.order = device, compute, copy, order
        self.engine = CopyEngine(device)
        self.computed = device.create_event()

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None:
        self.device.record(self.computed, self.compute)
        self.engine.submit(
            dst, src, BYTES, after=self.computed, before=self.compute, stream=self.copy, order=self.order
        )

    def close(self) -> None:
        self.device.destroy_event(self.computed)


class TwoStreams(Arm):
    """Blocks on the device and on the host, a stream behind the gate, and one that is free to run ahead of it.

    The free stream waits for the held one only if it is ordered. Without an edge, the arm waits for it while the gate
    is closed, so it has certainly run ahead. With an edge, the arm issues an unordered copy of the same size later and
    waits for that: work that is still not done then is held by its edge, and not merely slow.
    """

    holds_copy: ClassVar[bool] = False  # which of the two streams is behind the gate
    held_work: ClassVar[str]
    free_work: ClassVar[str]
    ordered: bool

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.free, self.bystander = device.create_stream(), device.create_stream()
        self.held_done = device.create_event()
        self.blocks, self.seen, self.aside = (device.empty(SHAPE, "uint32") for _ in range(3))
        self.host, self.unrelated = (device.pinned(SHAPE, "uint32") for _ in range(2))

    def lanes(self) -> tuple[Lane, ...]:
        held, free = ("copy", "compute") if self.holds_copy else ("compute", "copy")
        return Lane(f"{held} stream", self.held_work), Lane(f"{free} stream", self.free_work, not self.ordered)

    def draw(self) -> NDArray[np.uint32]:
        return self.random.integers(1, 1 << 32, SHAPE, np.uint32)

    def disturb(self) -> None:
        if self.ordered:
            self.device.copy_batch(addresses(self.aside), addresses(self.unrelated), BYTES, "stream", self.bystander)
            self.device.synchronize(self.bystander)
        else:
            self.wait_free()

    def held_work_ends(self) -> None:
        """Call this behind the work of the held stream, before that stream is made to wait for the other."""
        self.device.record(self.held_done, self.held)

    def wait_held(self) -> None:
        self.device.wait(self.held_done)

    def settle(self) -> None:
        for stream in (self.held, self.free, self.bystander):
            self.device.synchronize(stream)

    def close(self) -> None:
        self.device.destroy_event(self.held_done)
        for stream in (self.free, self.bystander):
            self.device.destroy_stream(stream)
        super().close()


class TransferArm(TwoStreams):
    def __init__(self, device: Device, seed: int, build_mover: Callable[[Device, int, int], Mover]) -> None:
        super().__init__(device, seed)
        self.compute, self.copy = (self.free, self.held) if self.holds_copy else (self.held, self.free)
        self.mover = build_mover(device, self.compute, self.copy)
        self.ordered = self.mover.ordered
        self.followed = device.create_event()

    def follow(self) -> None:
        """Enqueue what uses the blocks after the call."""

    def disturb(self) -> None:
        self.follow()
        self.device.record(self.followed, self.free)
        super().disturb()

    def waiting(self) -> bool:
        return not self.ordered or not self.device.done(self.followed)

    def wait_free(self) -> None:
        self.device.wait(self.followed)

    def read_blocks(self) -> None:
        """Read the blocks as attention does, as far as order goes."""
        self.device.copy(self.seen.address, self.blocks.address, self.blocks.nbytes, self.compute)

    def close(self) -> None:
        self.mover.close()
        self.device.destroy_event(self.followed)
        super().close()


class StoreArm(TransferArm):
    def prepare(self) -> None:
        self.before, self.value = self.draw(), int(self.random.integers(1, 1 << 32))
        self.host.array[:] = 0
        self.device.upload(self.blocks, self.before, self.held)

    def call(self) -> None:
        self.mover.move(addresses(self.host), addresses(self.blocks))

    def write_blocks(self) -> None:
        self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, self.value, self.compute)


class StoreBehindWriter(StoreArm):
    """A store is issued while the kernel that writes the blocks is queued."""

    held_work, free_work = "kernel writes the blocks", "store"

    def lead_in(self) -> None:
        self.write_blocks()
        self.held_work_ends()

    def compare(self) -> Comparison:
        return Comparison(np.full(SHAPE, self.value, np.uint32), self.host.array.copy())


class StoreBeforeWriter(StoreArm):
    """Compute writes for the next owner of blocks whose store is queued."""

    holds_copy = True
    held_work, free_work = "store", "kernel writes the blocks"

    def follow(self) -> None:
        self.held_work_ends()
        self.write_blocks()

    def compare(self) -> Comparison:
        return Comparison(self.before, self.host.array.copy())


class LoadArm(TransferArm):
    def prepare(self) -> None:
        self.before, self.loaded = self.draw(), self.draw()
        self.host.array[:] = self.loaded
        for blocks in (self.blocks, self.seen):
            self.device.upload(blocks, self.before, self.held)

    def call(self) -> None:
        self.mover.move(addresses(self.blocks), addresses(self.host))


class LoadBehindReader(LoadArm):
    """A load is issued into blocks that compute still reads for their last owner."""

    held_work, free_work = "attention reads the blocks", "load"

    def prepare(self) -> None:
        super().prepare()
        self.device.upload(self.seen, np.zeros(SHAPE, np.uint32), self.held)

    def lead_in(self) -> None:
        self.read_blocks()
        self.held_work_ends()

    def compare(self) -> Comparison:
        return Comparison(self.before, self.device.download(self.seen, self.held))


class LoadBehindZeroing(LoadArm):
    """A load is issued into blocks that compute is about to clear for their new owner."""

    held_work, free_work = "kernel clears the blocks", "load"

    def lead_in(self) -> None:
        self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, 0, self.compute)
        self.held_work_ends()

    def compare(self) -> Comparison:
        return Comparison(self.loaded, self.device.download(self.blocks, self.held))


class LoadBeforeReader(LoadArm):
    """Compute reads blocks whose load is queued."""

    holds_copy = True
    held_work, free_work = "load", "attention reads the blocks"

    def follow(self) -> None:
        self.held_work_ends()
        self.read_blocks()

    def compare(self) -> Comparison:
        return Comparison(self.loaded, self.device.download(self.seen, self.held))


ORDERS = ("any", "stream")  # when the driver may read the sources of a batched copy: from the call on, or in its turn


def build(
    arm: type[TransferArm], mover: type[Unordered] | type[Ordered], order: str, device: Device, seed: int
) -> TransferArm:
    return arm(device, seed, partial(mover, order=order))


def without_edge(arm: type[TransferArm], order: str, meanwhile: str, effect: str) -> Side:
    how = f"As in connectors before their fix: no event orders the streams. Source order {order.upper()}."
    return Side(partial(build, arm, Unordered, order), how, meanwhile, effect)


def with_edge(arm: type[TransferArm], order: str, effect: str, *, how: str = "An event orders the streams.") -> Side:
    meanwhile = "an unordered copy, issued later, is over: only the edge holds this one"
    return Side(partial(build, arm, Ordered, order), f"{how} Source order {order.upper()}.", meanwhile, effect)


class Words(NamedTuple):
    name: str
    variant: str
    arm: type[TransferArm]
    title: str
    meanwhile: str  # in the control
    corrupt: str
    intact: str
    orders: tuple[str, ...] = ORDERS


WORDS = (
    Words(
        "store-order",
        "writer",
        StoreBehindWriter,
        "Store: blocks are saved while the kernel that writes them is queued",
        "the store is over, and nothing has written the blocks yet",
        "the kernel writes the blocks; what was saved is what was there before",
        "the kernel writes the blocks, then the store saves them",
    ),
    Words(
        "store-order",
        "early writer",
        StoreBeforeWriter,
        "Store: blocks are written for their next owner while the store of their contents is queued",
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
        "the load is over, and nobody has read the blocks yet",
        "attention runs and reads what was loaded for somebody else",
        "attention reads the blocks, then the load fills them",
    ),
    Words(
        "load-order",
        "zeroing",
        LoadBehindZeroing,
        "Load: blocks are filled while the kernel that clears them is queued",
        "the load is over, and the blocks have not been cleared yet",
        "the kernel clears the blocks; what was loaded is gone",
        "the kernel clears the blocks, then the load fills them",
    ),
    Words(
        "load-order",
        "early reader",
        LoadBeforeReader,
        "Load: attention reads the blocks while the load that fills them is queued",
        "attention is over, and nothing has been loaded yet",
        "the load fills the blocks; attention has read what was there before",
        "the load fills the blocks, then attention reads them",
    ),
)


def case(words: Words, order: str) -> Case:
    # Where the source itself is being written, the fix needs STREAM as well, whatever the control took.
    needs_stream = words.arm is StoreBehindWriter
    half = with_edge(
        words.arm,
        "any",
        "the kernel writes, then the store runs, unless its sources were read early",
        how="An event orders the streams, but the driver may read the sources of the store before their turn.",
    )
    return Case(
        name=words.name,
        variant=f"{words.variant}, {order}",
        hazard="H5",
        title=words.title,
        call=f"the {words.name.removesuffix('-order')} of the blocks is issued",
        control_kind=ControlKind.NO_EVENT,
        control=without_edge(words.arm, order, words.meanwhile, words.corrupt),
        fixed=with_edge(words.arm, "stream" if needs_stream else order, words.intact),
        half=half if needs_stream and order == "any" else None,
    )


TRANSFER_CASES = tuple(case(words, order) for words in WORDS for order in words.orders)


TOKENS_PER_BLOCK = 4
TOKENS = BLOCKS * TOKENS_PER_BLOCK


class Connector:
    """Both sides, and as much of an executor as brings blocks to the host tier and back."""

    def __init__(self, device: Device, blocks: Any) -> None:
        settings, link = OffloadSettings(), Link()
        self._link = link
        self._requests = 0
        self.worker = OffloadWorker(settings, link, OneRank(), self._make_pool)
        self.worker.register(device, [blocks])
        self.scheduler = OffloadScheduler(settings, TOKENS_PER_BLOCK, link, Switches(None))

    def _make_pool(self, device: Device, block_bytes: int, _: object) -> HostPool:
        # Two rounds fit: what the last one stored gives way to the next.
        self.pool = HostPool(device, host_bytes=2 * BLOCKS * block_bytes, block_bytes=block_bytes)
        return self.pool

    def request(self, content: int) -> SimpleNamespace:
        """Requests of one content share their tokens."""
        self._requests += 1
        tokens = [content, *range(1, TOKENS + 1)]
        return SimpleNamespace(
            request_id=self._requests, get_tokens=lambda _beam: list(tokens), lora_task_id=None, cache_salt_id=None,
            py_multimodal_data=None, sampling_config=SimpleNamespace(beam_width=1),
        )  # fmt: skip

    def begin_store(self, request: SimpleNamespace, stream: int) -> Step:
        """The report of a request whose whole prompt has been given to the device."""
        self.scheduler.get_num_new_matched_tokens(request, 0)
        self.scheduler.update_state_after_alloc(request, [list(range(BLOCKS))])
        report = SimpleNamespace(
            request_id=request.request_id, new_tokens=request.get_tokens(0), new_block_ids=list(range(BLOCKS)),
            computed_position=TOKENS,
        )  # fmt: skip
        return self._begin(SimpleNamespace(new_requests=[report], cached_requests=[]), stream)

    def begin_load(self, request: SimpleNamespace, stream: int) -> Step:
        tokens, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
        if (tokens, is_async) != (TOKENS, True):
            raise AssertionError(f"the host tier has {tokens} tokens of a prompt whose {TOKENS} were stored")
        self.scheduler.update_state_after_alloc(request, [list(range(BLOCKS))])
        return self._begin(None, stream)

    def over(self) -> bool:
        """Whether the transfer that was begun has ended."""
        self.worker.finished([], [])
        return bool(self._link.ledger.ended)

    def wait(self) -> None:
        while not self.over():
            pass

    def settle(self) -> None:
        """Both sides take note of the end, of which there may be none."""
        self.scheduler.build_connector_meta(None)

    def _begin(self, report: SimpleNamespace | None, stream: int) -> Step:
        step = self.scheduler.build_connector_meta(report)
        self.worker.bind(step)
        self.worker.start(stream)
        return step

    def stored(self, step: Step) -> NDArray[np.uint32]:
        """Contents of the host tier for the blocks of the step's store."""
        words = (ctypes.c_uint32 * (self.pool.bytes // 4)).from_address(self.pool.address)
        slots: NDArray[np.uint32] = np.ctypeslib.as_array(words).reshape(-1, BLOCK_WORDS)
        return slots[list(step.stores[0].slots)].copy()


class ConnectorArm(TwoStreams):
    def __init__(self, device: Device, seed: int, *, ordered: bool) -> None:
        super().__init__(device, seed)
        self.ordered = ordered
        self.computes = self.held if ordered else self.free  # as far as the connector knows
        self.connector = Connector(device, self.blocks)
        self.content = 0
        self.pending = False

    def waiting(self) -> bool:
        return not self.ordered or not self.connector.over()

    def wait_free(self) -> None:
        if self.pending:
            self.connector.wait()
            self.pending = False

    def settle(self) -> None:
        self.wait_free()
        super().settle()
        self.connector.settle()

    def close(self) -> None:
        self.connector.worker.close()
        super().close()


class StoreThroughConnector(ConnectorArm):
    """A prompt is reported to the connector as computed while the kernels that write its blocks are queued."""

    held_work, free_work = "kernel writes the blocks", "store"

    def prepare(self) -> None:
        self.content += 1
        self.request = self.connector.request(self.content)
        self.value = int(self.random.integers(1, 1 << 32))
        self.device.upload(self.blocks, self.draw(), self.held)

    def lead_in(self) -> None:
        self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, self.value, self.held)
        self.held_work_ends()

    def call(self) -> None:
        self.step = self.connector.begin_store(self.request, self.computes)
        self.pending = True

    def compare(self) -> Comparison:
        return Comparison(np.full(SHAPE, self.value, np.uint32), self.connector.stored(self.step))


class LoadThroughConnector(ConnectorArm):
    """A request's blocks are loaded while attention that reads them for their last owner is queued."""

    held_work, free_work = "attention reads the blocks", "load"

    def prepare(self) -> None:
        self.content += 1
        self.device.upload(self.blocks, self.draw(), self.held)
        self.connector.begin_store(self.connector.request(self.content), self.held)
        self.connector.wait()
        self.connector.settle()
        self.before = self.draw()
        self.device.upload(self.blocks, self.before, self.held)
        self.device.upload(self.seen, np.zeros(SHAPE, np.uint32), self.held)

    def lead_in(self) -> None:
        self.device.copy(self.seen.address, self.blocks.address, BLOCKS * BLOCK_BYTES, self.held)
        self.held_work_ends()

    def call(self) -> None:
        self.connector.begin_load(self.connector.request(self.content), self.computes)
        self.pending = True

    def compare(self) -> Comparison:
        return Comparison(self.before, self.device.download(self.seen, self.held))


def build_connector(arm: type[ConnectorArm], ordered: bool, device: Device, seed: int) -> Arm:
    return arm(device, seed, ordered=ordered)


def side(arm: type[ConnectorArm], *, ordered: bool, effect: str) -> Side:
    make: Callable[[Device, int], Arm] = partial(build_connector, arm, ordered)
    if ordered:
        how = "The connector marks the stream that computes, and its copy stream waits for the mark."
        return Side(make, how, "an unordered copy, issued later, is over: only the mark holds this one", effect)
    how = "The same connector, given a stream on which nothing runs."
    return Side(make, how, f"the {arm.free_work} is over, and the compute stream has not begun", effect)


CASES = (
    *TRANSFER_CASES,
    Case(
        name="connector-store",
        variant="writer",
        hazard="H5",
        title="Connector: a prompt goes to the host tier while the kernels that write its blocks are queued",
        call="the connector learns that the prompt has been computed",
        control_kind=ControlKind.WRONG_STREAM,
        control=side(
            StoreThroughConnector,
            ordered=False,
            effect="the kernel writes the blocks; the host tier keeps what was there before",
        ),
        fixed=side(StoreThroughConnector, ordered=True, effect="the kernel writes the blocks, then they are stored"),
    ),
    Case(
        name="connector-load",
        variant="reader",
        hazard="H5",
        title="Connector: a prompt comes back into blocks that queued attention reads for their last owner",
        call="the connector learns where the prompt's blocks are",
        control_kind=ControlKind.WRONG_STREAM,
        control=side(
            LoadThroughConnector, ordered=False, effect="attention runs and reads what was loaded for somebody else"
        ),
        fixed=side(LoadThroughConnector, ordered=True, effect="attention reads the blocks, then they are loaded"),
    ),
)
