"""Between upstream's calls and the core: single calls become a batch, and wait for what upstream says late.

`add_sequence` and `add_token` only note the request. The first call that needs an answer admits all noted requests in
one batch, so that all claims come before any allocation; then it grows the others in one call, and submits the copies.
Growth comes second, because it may evict what the batch is about to reuse. Until then the requests' positions do not
change: upstream goes through the whole batch and asks each request whether it is at its first chunk.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix.managers.between_ranks import Clock
from trtllm_kvfix.managers.copies import BookedCopies
from trtllm_kvfix.managers.layout import CacheLayout, Window
from trtllm_kvfix.managers.prompts import Prompt, bound_half, forget_prompt, prompt_to_admit, tell_reuse
from trtllm_kvfix.native import BlockManager, OutOfBlocks

if TYPE_CHECKING:
    from trtllm_kvfix.managers.watched import WatchedCache

Arriving = tuple[int, int, Any, bool]  # id, tokens, the request, whether it is a dummy
Table = npt.NDArray[np.int32]


class LiveSequence:
    """A live sequence, as upstream reports it: what is reserved, and which chunks of its prompt have been computed.

    In the overlap loop, a request's position runs ahead of what the host knows to be computed.

    Upstream makes no call when it prepares a later chunk of a prompt. But the head of a `prepare_resources` lies
    between two moves of a position, and each batch reports its chunks once, in order. So positions are noted as they
    move, and the i-th report of a request ends its i-th chunk.
    """

    __slots__ = (
        "_chunk_ends", "_position", "computed", "is_dummy", "is_private", "length", "most", "names", "prompt",
        "prompt_length", "request", "request_id", "reused",
    )  # fmt: skip

    def __init__(self, request: Any, prompt: Prompt, reused: int, length: int, *, is_dummy: bool) -> None:
        self.request = request
        self.request_id = prompt.request_id
        self.prompt: Prompt | None = prompt  # until it is computed
        self.prompt_length = prompt.length
        self.length = length  # positions reserved
        self.reused = reused  # leading positions that were in the cache when it came
        self.computed = reused  # leading positions whose values are in the cache, as far as reported
        self.most: int = prompt.length + request.max_new_tokens  # positions that it may reach
        self.is_private = prompt.is_private
        self.is_dummy = is_dummy
        self.names: tuple[int, ...] = ()  # of full blocks, as far as they have been asked for
        self._position = reused
        self._chunk_ends: tuple[int, ...] = ()  # computed or being computed, not reported yet

    @property
    def is_in_prompt(self) -> bool:
        """Whether more chunks will be enqueued."""
        return self._position < self.prompt_length

    def begin_at(self, position: int) -> None:
        """The position where the model begins: behind what a connector loads."""
        self._position = position

    def look(self) -> None:
        """Note the end of a chunk that has been enqueued since the last look."""
        if not self.is_in_prompt:
            return
        position = min(self.request.context_current_position, self.prompt_length)
        # A failed load moves it backwards. One chunk more is counted then, so less counts as computed, never more.
        if position != self._position:
            self._chunk_ends += (position,)
            self._position = position

    def lacks(self, chunk: int) -> int:
        """Positions to reserve, so that a step may compute the next chunk."""
        return min(self._position + chunk, self.prompt_length) - self.length

    def reported(self) -> int:
        """A batch with a chunk of this prompt has ended. Returns how much of the prompt is computed by now."""
        self.look()
        if self._chunk_ends:
            self.computed, *later = self._chunk_ends
            self._chunk_ends = tuple(later)
        if self.computed == self.prompt_length:
            self.prompt = None
            forget_prompt(self.request)
        return self.computed

    def computed_for_growth(self) -> int:
        """Leading positions that the device has computed when the next one is reserved, so that a window may slide.

        The last one may be in the step that runs meanwhile.
        """
        return self.computed if self.computed < self.prompt_length else max(self.computed, self.length - 1)

    def filled(self, request: Any) -> int:
        """Leading positions whose values are in the cache, as far as is known.

        A token was sampled from a step that had computed every position before it. The last one itself may not have
        gone through the model.
        """
        tokens: int = request.get_num_tokens(0)
        return self.computed if tokens <= self.prompt_length else min(tokens - 1, self.length)

    def known_at_end(self, request: Any) -> tuple[list[int] | None, int]:
        """The tokens to keep (None if the prompt has all of them), and how many positions are computed."""
        if request.get_num_tokens(0) <= self.prompt_length:
            return None, self.computed
        done = self.filled(request)
        return (request.get_tokens(0)[:done] if done > self.prompt_length else None), done


class Slots:
    """Slots of live sequences' blocks on the device. For upstream, a block's number is its slot.

    The caller holds a lock around every call.
    """

    def __init__(self, core: BlockManager, layout: CacheLayout) -> None:
        self._core = core
        self._layout = layout
        self._output: Any = None
        self._rows_of_pools: list[Any] = []
        self._block_in: dict[tuple[int, int], int] = {}  # of all live sequences; empty until it is needed

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

    def block_in(self, slot: int, window: Window, live: Iterable[int]) -> int | None:
        """The block in this slot, which belongs to a live sequence and stays there as long as one has it."""
        if not self._block_in:
            ids = list(live)
            for each in self._layout.windows:
                found = self._core.get_batch_cache_block_ids(ids, each.name)
                for slots, (blocks,) in zip(self.of(ids, each), found, strict=True):
                    named = zip(slots, blocks, strict=True)
                    self._block_in |= {(each.index, place): block for place, block in named if block >= 0}
        return self._block_in.get((window.index, slot))

    def moved(self) -> None:
        """Called when sequences have come, grown or gone."""
        self._block_in = {}


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
    """The caller holds a lock around every call. Appending to `arriving` and `growing` is the exception."""

    def __init__(self, core: BlockManager, copies: BookedCopies, clock: Clock, layout: CacheLayout) -> None:
        self.core = core
        self.live: dict[int, LiveSequence] = {}
        self.arriving: list[Arriving] = []  # may be appended to without the lock
        self.growing: list[int] = []  # one entry for each position; the same
        self.dummies: set[int] = set()  # of the live ones
        self._in_prompt: dict[int, LiveSequence] = {}  # of the live ones, whose positions still move
        self.pins = Pins(core)
        self.slots = Slots(core, layout)
        self._copies = copies
        self._clock = clock
        self._tokens_per_block = layout.tokens_per_block
        self._connector = layout.connector
        self._slides = layout.slides
        self._chunk, self._ahead = layout.chunk, layout.ahead
        self._next_chunks: dict[int, int] = {}  # positions of prompts, to be reserved with the growth of the others
        self.config = core.config
        self.watch: WatchedCache | None = None

    # ---- upstream's calls ----

    def add(self, request_id: int, length: int, beam_width: int, request: Any) -> bool:
        """Note the request, without a lock. Returns whether it is a dummy: upstream expects its refusal here."""
        if beam_width != 1:
            raise RuntimeError(f"request {request_id} has {beam_width} beams; one is served")
        if request_id in self.live:
            raise RuntimeError(f"request {request_id} was added and not removed; adding it again would lose its blocks")
        is_dummy: bool = request.is_dummy_request
        self.arriving.append((request_id, length, request, is_dummy))
        return is_dummy

    def report(self, request: Any) -> None:
        """A chunk of the request's prompt has been computed. An unknown request has ended before."""
        sequence = self.live.get(request.request_id)
        if sequence is None or sequence.is_private:
            return
        computed = sequence.reported()
        self.core.store_context_blocks(request.request_id, computed)

    def store(self, request_id: int, request: Any) -> None:
        """Offer what a live request has computed of its prompt, without waiting for a report."""
        self.settle()
        sequence = self.live[request_id]
        if sequence.is_private:
            return
        sampled = request.get_num_tokens(0) > sequence.prompt_length  # by a step that had computed the prompt
        self.core.store_context_blocks(request_id, sequence.prompt_length if sampled else sequence.computed)

    def knows(self, request_id: int) -> bool:
        return request_id in self.live or any(request_id == each[0] for each in self.arriving)

    def pin(self, request_id: int) -> list[int]:
        self.settle()
        self.end_copies()  # a block whose copy is on its way cannot be pinned
        return self.pins.pin(request_id)

    def rewind(self, request_id: int, count: int) -> None:
        self.settle()
        self.core.rewind_kv_cache(request_id, count)
        if self.watch is not None:
            self.watch.rewound(request_id)
        self.live[request_id].length -= count

    def remove(self, request_id: int, request: Any) -> None:
        """Upstream also frees requests that were never added. Without a request, nothing more is kept for reuse."""
        self._forget_notes({request_id})
        self.slots.moved()
        sequence = self.live.pop(request_id, None)
        self._in_prompt.pop(request_id, None)
        self.dummies.discard(request_id)
        if sequence is None:
            return
        if self.watch is not None:
            self.watch.removed(sequence)
        if request is None or sequence.is_private or request.is_dummy_request:
            self.core.remove_sequence(request_id, store=False)
        else:
            tokens, computed = sequence.known_at_end(request)
            self.core.remove_sequence(request_id, tokens=tokens, computed=computed)
        if len(self.live) == len(self.dummies):
            self.end_copies()  # no step will come to do it, and no request could be admitted

    def forget_prefixes(self) -> None:
        """The weights may have changed, so what live requests have computed is no prefix of anything either."""
        self.core.reset_reuse_state()
        for sequence in self.live.values():
            sequence.is_private = True

    def block_in(self, slot: int, window: Window) -> int | None:
        return self.slots.block_in(slot, window, self.live)

    # ---- where the notes take effect ----

    def begin_iteration(self) -> None:
        """Settle all earlier notes, and note the chunks that were enqueued since."""
        self.end_copies()
        if self.watch is not None:
            self.watch.begin_iteration()
        self._clock.step()
        for request_id, sequence in list(self._in_prompt.items()):
            sequence.look()
            if not sequence.is_in_prompt:
                del self._in_prompt[request_id]
            elif self._chunk is not None and sequence.lacks(self._chunk) > 0:
                self._next_chunks[request_id] = sequence.lacks(self._chunk)

    def settle(self) -> None:
        """Admit all noted requests, then grow the others. Nothing else queues copies."""
        if not (self.arriving or self.growing or self._next_chunks):
            return
        came = self._admit() if self.arriving else {}
        grown: Mapping[int, int] = {}
        if self.growing or self._next_chunks:
            try:
                grown = self._reserve()
            except Exception as error:
                if self.watch is not None:
                    self.watch.stand_down(error)  # of slots that have new owners it would not hear
                raise
        self.slots.moved()
        self._copies.submit()
        if self.watch is not None:
            self.watch.admitted(list(came.values()))
            self.watch.grown(self.live, grown)

    def end_copies(self) -> None:
        self._copies.submit()  # copies that a batch queued before it failed
        self._copies.end()

    def _admit(self) -> Mapping[int, LiveSequence]:
        arriving = self.arriving[:]
        del self.arriving[: len(arriving)]  # others may be appending
        try:
            prompts = [prompt_to_admit(*each) for each in arriving]
            batch = self.core.add_sequence_batch([prompt.sequence for prompt in prompts], chunk_tokens=self._ahead)
        except Exception:
            self._forget_notes({request_id for request_id, *_ in arriving})
            raise
        came: dict[int, LiveSequence] = {}
        for (request_id, length, request, is_dummy), prompt, admission in zip(
            arriving, prompts, batch.admitted, strict=True
        ):
            reused = admission.tokens_reused
            reserved = length if self._ahead is None else min(length, reused + self._ahead)
            came[request_id] = LiveSequence(request, prompt, reused, reserved, is_dummy=is_dummy)
        self.live |= came
        self._in_prompt |= came
        for request_id in [request_id for request_id, _, _, is_dummy in arriving if is_dummy]:
            self.dummies.add(request_id)
            self._fill(came[request_id])
        if any(prompt.has_duration for prompt in prompts):
            self._clock.start()
        for sequence in came.values():  # the books know all requests by now, should a connector raise
            begin = sequence.computed
            if self._connector is not None and not sequence.is_dummy:
                # Tokens behind those reused that a connector will write, before a step reads them.
                begin += int(self._connector.get_num_new_matched_tokens(bound_half(sequence.request), begin))
                sequence.begin_at(begin)
            if begin:
                tell_reuse(sequence.request, begin, sequence.prompt_length, self._tokens_per_block)
        return came

    def _fill(self, dummy: LiveSequence) -> None:
        """Reserve the whole prompt of a dummy, as if it were computed meanwhile: it stands for one that has been."""
        while self._ahead is not None and dummy.length < dummy.prompt_length:
            count = min(self._ahead, dummy.prompt_length - dummy.length)
            self.core.add_tokens([dummy.request_id], [count], computed=[dummy.length])
            dummy.computed = dummy.length
            dummy.length += count

    def _reserve(self) -> Mapping[int, int]:
        ids = self.growing[:]
        del self.growing[: len(ids)]  # others may be appending
        counts: dict[int, int] = dict.fromkeys(ids, 1)
        if len(counts) != len(ids):
            counts = Counter(ids)
        if self._next_chunks:
            counts |= self._next_chunks  # a prompt does not grow otherwise
            self._next_chunks = {}
        try:
            self._grow(counts)
        except OutOfBlocks:
            # Slots that this iteration's copies hold come free when these have ended: at the same moment on every rank.
            self.end_copies()
            self._grow(counts)
        return counts

    def _grow(self, counts: Mapping[int, int]) -> None:
        live = self.live
        computed = [live[each].computed_for_growth() for each in counts] if self._slides else None
        self.core.add_tokens(list(counts), list(counts.values()), computed=computed)
        for request_id, count in counts.items():
            live[request_id].length += count

    def _forget_notes(self, ids: Set[int]) -> None:
        if self.arriving:
            self.arriving[:] = [each for each in self.arriving if each[0] not in ids]
        if self.growing:
            self.growing[:] = [each for each in self.growing if each not in ids]
        for request_id in ids:
            self._next_chunks.pop(request_id, None)
