"""What Python keeps of requests and of their blocks, beside the extension, and the copies that follow from it.

`native.RequestBooks` has the notes between upstream's calls and what is known of live requests. It takes plain values.
So the books here keep upstream's objects: what only these can say is read from them, and what they must be told is told
to them. They also submit the copies of a batch, and know blocks by their slots, as upstream numbers them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix.log import log
from trtllm_kvfix.managers.between_ranks import Clock
from trtllm_kvfix.managers.layout import CacheLayout, Window
from trtllm_kvfix.managers.memory import Memory, Spans
from trtllm_kvfix.managers.prompts import bound_half, prompt_to_admit, tell_reuse
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import (
    Admitted,
    BlockManager,
    CopyEngine,
    Device,
    DeviceError,
    RequestBooks,
    Settled,
    TransferItem,
)
from trtllm_kvfix.staging import current_place

if TYPE_CHECKING:
    from trtllm_kvfix.managers.watched import WatchedCache

Table = npt.NDArray[np.int32]
MUST_DRAIN = Settled.MUST_DRAIN
TRANSFERS_MAX = 256  # groups of copies in flight; one more waits for the oldest


class BookedCopies:
    """The copies that a batch asks for, in stream order between the steps, and the tickets that end them.

    They run on the stream of the model, behind the kernels that wrote their sources and before the kernels that read
    their destinations. A ticket ends at fixed points, which are the same on every rank, and never because a rank finds
    its copies done: a block is usable on all ranks in the same iteration, or on none.

    The caller holds a lock around every call.
    """

    def __init__(self, core: BlockManager, requests: RequestBooks, device: Device, memory: Memory, stream: int) -> None:
        self._core = core
        self._requests = requests
        self._device = device
        self._memory = memory
        self._stream = stream
        self._engine = CopyEngine(device, transfers_max=TRANSFERS_MAX)
        self._reached = device.create_event()
        self._pending: deque[tuple[int, list[int]]] = deque()  # ticket, transfers of the engine
        self._has_told = False  # in the log, that copies fail
        self.listeners: list[Callable[[Sequence[TransferItem]], None]] = []  # they raise nothing

    def submit(self) -> None:
        """Submit what admission and growth have queued, before the step that needs it is enqueued."""
        batch = self._core.take_transfers()
        if not batch.ticket:
            return
        for tell in self.listeners:
            tell(batch.items)
        transfers: list[int] = []
        try:
            # Callers may run the model on the stream that is current: the copies are ordered against both.
            current = current_place().stream
            self._device.record(self._reached, current)
            for spans in self._memory.waves(batch.items):
                transfers.append(self._send(spans, current))  # noqa: PERF401  those before a failure count
        except Exception as error:
            self._wait_out(transfers)
            self._fail(batch.ticket, error)
            if not isinstance(error, DeviceError):
                raise
        else:
            self._pending.append((batch.ticket, transfers))

    def end(self) -> None:
        """Wait for everything queued. Raises if a request's blocks did not arrive: its answer would be wrong."""
        if self._requests.may_have_copies():
            self.submit()  # what a batch queued before it failed
        while self._pending:
            ticket, transfers = self._pending.popleft()
            try:
                for each in transfers:
                    self._engine.wait(each)
            except DeviceError as error:
                self._wait_out(transfers)
                self._fail(ticket, error)
            else:
                self._core.complete(ticket)

    def _send(self, spans: Spans, current: int) -> int:
        return self._engine.submit(
            spans.dst, spans.src, spans.nbytes, after=self._reached, before=current, stream=self._stream
        )

    def _wait_out(self, transfers: list[int]) -> None:
        """Called before their slots are given away."""
        for each in transfers:
            with suppress(DeviceError):
                self._engine.wait(each)

    def _fail(self, ticket: int, error: Exception) -> None:
        """Blocks without an owner are forgotten; a request that owns one cannot go on."""
        counters.native_failed_copies.add()
        losers = self._core.fail(ticket)
        if losers:
            raise RuntimeError(f"copies of KV-cache blocks failed for requests {losers}: {error}") from error
        if not self._has_told:
            self._has_told = True
            log.error(
                "copies of KV-cache blocks failed, and what they carried is no longer cached: %s (said once; "
                "trtllm_kvfix_native_failed_copies_total counts them)", error,
            )  # fmt: skip

    def close(self) -> None:
        """After this call, neither our copies nor any step that was enqueued before use the memory."""
        with suppress(DeviceError):  # of a device that fails: what follows is for what is left
            self._device.synchronize(self._stream)
        with suppress(RuntimeError):  # of copies that failed: their requests have ended with the server
            self.end()
        with suppress(DeviceError):
            self._device.destroy_event(self._reached)


class Slots:
    """Slots of live sequences' blocks on the device. For upstream, a block's number is its slot.

    The caller holds a lock around every call.
    """

    def __init__(self, core: BlockManager, requests: RequestBooks, layout: CacheLayout) -> None:
        self._core = core
        self._requests = requests
        self._layout = layout
        self._output: Any = None
        self._rows_of_pools: list[Any] = []
        self._block_in: dict[tuple[int, int], int] = {}  # of all live sequences, as they were at _found_at
        self._found_at = -1

    # ---- as attention reads them ----

    def write_offsets(self, output: Any, request_ids: Sequence[int], beam_width: int, offset: int) -> None:
        pools = self._layout.pools
        if self._layout.slides:
            table, rows = self._table(request_ids), slice(offset, offset + len(request_ids))
            for part, pool in zip(self._rows_of(output), pools, strict=True):
                part[0, rows, 0] = table[pool.window.index] * pool.offset_scale
                part[0, rows, 1] = part[0, rows, 0] + pool.kv_factor - 1
            return
        for part, pool in zip(self._rows_of(output), pools, strict=True):
            self._core.copy_batch_block_offsets(
                part, request_ids, beam_width, offset, scale=pool.offset_scale, v_offset=pool.kv_factor - 1
            )

    def _rows_of(self, output: Any) -> list[Any]:
        """Each pool's part of the table, as the core writes it. Upstream has one table and passes it every time."""
        if output is not self._output:
            array = output.numpy() if hasattr(output, "numpy") else output
            self._output, self._rows_of_pools = output, [array[i : i + 1] for i in range(len(self._layout.pools))]
        return self._rows_of_pools

    def _table(self, request_ids: Sequence[int]) -> Table:
        """[window, sequence, block]. A block that has left its window is replaced by the first one that has not.

        Kernels may load a whole tile and mask what is outside the window, so the table must hold valid numbers.
        """
        rows = max(1, len(request_ids))
        table = np.zeros((len(self._layout.windows), rows, 2, self._layout.blocks_per_sequence), np.int32)
        self._core.copy_batch_block_offsets(table, request_ids, 1, 0)
        slots = table[:, : len(request_ids), 0]
        if self._layout.slides:
            first = np.take_along_axis(slots, (slots >= 0).argmax(axis=2, keepdims=True), axis=2)
            slots = np.where(slots < 0, first, slots)
        return slots

    # ---- as others name blocks ----

    def of(self, request_ids: Sequence[int], window: Window) -> list[list[int]]:
        """The slots of each sequence's blocks."""
        held = [len(blocks) for (blocks,) in self._core.get_batch_cache_block_ids(request_ids, window.name)]
        table = self._table(request_ids)[window.index]
        return [row[:count].tolist() for row, count in zip(table, held, strict=True)]

    def block_in(self, slot: int, window: Window) -> int | None:
        """The block in this slot, which belongs to a live sequence and stays there as long as one has it."""
        if self._found_at != self._requests.changes:
            self._found_at, self._block_in = self._requests.changes, {}
            ids = self._requests.live
            for each in self._layout.windows:
                found = self._core.get_batch_cache_block_ids(ids, each.name)
                for slots, (blocks,) in zip(self.of(ids, each), found, strict=True):
                    named = zip(slots, blocks, strict=True)
                    self._block_in |= {(each.index, place): block for place, block in named if block >= 0}
        return self._block_in.get((window.index, slot))


class Pins:
    """Blocks that upstream holds by number beyond the life of their request: transfers pin, and unpin when they ended.

    Upstream's numbers of blocks are slots where the manager is ours. A pinned block keeps its slot, so the slot names
    it until it is unpinned. The caller holds a lock around every call.
    """

    def __init__(self, core: BlockManager) -> None:
        self._core = core
        self._block_in: dict[int, int] = {}  # slot in primary -> block, for all blocks that are pinned here
        self._count: dict[int, int] = {}  # by slot: the pins that have not been released
        self._chains: dict[int, list[list[int]]] = {}  # by last slot: what was pinned with it

    def pin(self, request_id: int) -> list[int]:
        """Pin every block of a live sequence. Returns their slots, that of the first block first."""
        blocks = [block for block in self._core.get_cache_block_ids(request_id)[0] if block >= 0]
        slots = [slot for slot, _ in self._core.pin_blocks_by_id(blocks)]
        for slot, block in zip(slots, blocks, strict=True):
            self._block_in[slot] = block
            self._count[slot] = self._count.get(slot, 0) + 1
        return slots

    def chain(self, slots: list[int]) -> int | None:
        """The name of the blocks that one call pinned, for builds that name them by the last one."""
        if not slots:
            return None
        self._chains.setdefault(slots[-1], []).append(slots)
        return slots[-1]

    def unpin(self, slots: Sequence[int]) -> None:
        """End one pin of each block. All or nothing."""
        unknown = [slot for slot in slots if slot not in self._block_in]
        if unknown:
            raise ValueError(f"unpin_blocks_by_id: blocks {unknown} are not pinned here; were they unpinned before?")
        self._core.unpin_blocks_by_id([self._block_in[slot] for slot in slots], tier="primary")
        for slot in slots:
            self._count[slot] -= 1
            if not self._count[slot]:
                del self._count[slot], self._block_in[slot]

    def unpin_chain(self, last: int) -> None:
        """End the pins that were made last under this name."""
        chains = self._chains.get(last)
        if not chains:
            raise ValueError(f"unpin_blocks_by_id: nothing is pinned under block {last}; was it unpinned before?")
        self.unpin(chains[-1])
        chains.pop()
        if not chains:
            del self._chains[last]


class Books:
    """The caller holds a lock around every call, so that copies are submitted as they were queued, before anybody uses
    what was admitted with them. `add` is the exception.
    """

    def __init__(
        self, core: BlockManager, requests: RequestBooks, copies: BookedCopies, clock: Clock, layout: CacheLayout
    ) -> None:
        self.core = core
        self.requests = requests
        self.live: dict[int, Any] = {}  # upstream's requests by id, noted ones too
        self._in_prompt: dict[int, Any] = {}  # of these, those whose positions still move
        self.names: dict[int, list[int]] = {}  # hashes of full blocks of live requests, once they have been asked for
        self.slots = Slots(core, requests, layout)
        self.pins = Pins(core)
        self._copies = copies
        self._clock = clock
        self._connector = layout.connector
        self._tokens_per_block = layout.tokens_per_block
        self.watch: WatchedCache | None = None

    def add(self, request_id: int, length: int, request: Any) -> bool:
        """Note the request. Returns whether it is a dummy."""
        is_dummy: bool = request.is_dummy_request
        prompt = prompt_to_admit(request_id, length, request, is_dummy)
        # Before another thread may admit it. A request that is there already stays, and is refused.
        self.live.setdefault(request_id, request)
        self._in_prompt.setdefault(request_id, request)
        self.requests.add(prompt, request.max_new_tokens, is_dummy)
        return is_dummy

    def remove(self, request_id: int, request: Any) -> None:
        """Upstream also frees requests that were never added. Without a request, nothing more is kept for reuse."""
        if self.watch is not None:
            self.watch.ends(request_id)
        wanted = self.requests.remove(request_id, None if request is None else request.get_num_tokens(0))
        if wanted:
            self.requests.end(request_id, request.get_tokens(0)[:wanted])
        if self.live.pop(request_id, None) is None:
            return
        self._in_prompt.pop(request_id, None)
        self.names.pop(request_id, None)
        if self.requests.is_idle:
            self._copies.end()  # no step will come to do it, and no request could be admitted

    def pin(self, request_id: int) -> list[int]:
        self.settle()
        self._copies.end()  # a block whose copy is on its way cannot be pinned
        return self.pins.pin(request_id)

    def rewind(self, request_id: int, count: int) -> None:
        self.requests.rewind(request_id, count)
        if self.watch is not None:
            self.watch.rewound(request_id)

    def begin_iteration(self) -> None:
        """End all earlier copies, and note the chunks that were enqueued since."""
        self._copies.end()
        if self.watch is not None:
            self.watch.begin_iteration()
        self._clock.step()
        if self._in_prompt:
            for request_id, request in list(self._in_prompt.items()):
                if not self.requests.look(request_id, request.context_current_position):
                    del self._in_prompt[request_id]

    def settle(self) -> None:
        """Admit the noted requests, grow the others, submit the copies of both."""
        try:
            settled = self.requests.settle()
            if settled == MUST_DRAIN:
                # Slots that this iteration's copies hold come free when these have ended: at the same moment on every
                # rank.
                self._copies.end()
                settled = self.requests.settle(drained=True)
        except Exception:
            self._forget_refused()
            raise
        if settled:
            for each in self.requests.take_admitted():
                self._tell(each)
            self._copies.submit()
            if self.watch is not None:
                self.watch.hear()

    def _tell(self, admitted: Admitted) -> None:
        """Upstream goes through the whole batch and asks each request whether it is at its first chunk. So requests
        learn of reuse when the batch is complete."""
        request_id, begin = admitted.request_id, admitted.tokens_reused
        request = self.live[request_id]
        if admitted.has_duration:
            self._clock.start()
        if self._connector is not None and not admitted.is_dummy:
            # Tokens behind those reused that a connector will write, before a step reads them.
            begin += int(self._connector.get_num_new_matched_tokens(bound_half(request), begin))
            self.requests.begin_at(request_id, begin)
        if begin:
            tell_reuse(request, begin, admitted.tokens, self._tokens_per_block)

    def _forget_refused(self) -> None:
        """Of a batch that was not admitted."""
        for requests in (self.live, self._in_prompt):
            for request_id in [each for each in requests if not self.requests.knows(each)]:
                del requests[request_id]
