"""Between upstream's calls and the core: single calls become a batch, and wait for what upstream says late.

`add_sequence` and `add_token` only note the request. The first call that needs an answer admits all noted requests in
one batch, so that all claims come before any allocation; then it grows the others in one call, and submits the copies.
Growth comes second, because it may evict what the batch is about to reuse. Until then the requests' positions do not
change: upstream goes through the whole batch and asks each request whether it is at its first chunk.
"""

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

from trtllm_kvfix.managers.clock import Clock
from trtllm_kvfix.managers.copies import Copies
from trtllm_kvfix.managers.layout import Layout, Window
from trtllm_kvfix.managers.pins import Pins
from trtllm_kvfix.managers.prompts import bound_half, prompt_to_admit, tell_reuse
from trtllm_kvfix.managers.sequence import Sequence
from trtllm_kvfix.managers.slots import Slots
from trtllm_kvfix.native import BlockManager, OutOfBlocks

Arriving = tuple[int, int, Any, bool]  # id, tokens, the request, whether it is a dummy


class Books:
    """The caller holds a lock around every call. Appending to `arriving` and `growing` is the exception."""

    def __init__(self, core: BlockManager, copies: Copies, clock: Clock, layout: Layout) -> None:
        self.core = core
        self.live: dict[int, Sequence] = {}
        self.arriving: list[Arriving] = []  # may be appended to without the lock
        self.growing: list[int] = []  # one entry for each position; the same
        self.dummies: set[int] = set()  # of the live ones
        self._in_prompt: dict[int, Sequence] = {}  # of the live ones, whose positions still move
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
        if self.arriving:
            self._admit()
        if self.growing or self._next_chunks:
            self._reserve()
        self.slots.moved()
        self._copies.submit()

    def end_copies(self) -> None:
        self._copies.submit()  # copies that a batch queued before it failed
        self._copies.end()

    def _admit(self) -> None:
        arriving = self.arriving[:]
        del self.arriving[: len(arriving)]  # others may be appending
        try:
            prompts = [prompt_to_admit(*each) for each in arriving]
            batch = self.core.add_sequence_batch([prompt.sequence for prompt in prompts], chunk_tokens=self._ahead)
        except Exception:
            self._forget_notes({request_id for request_id, *_ in arriving})
            raise
        came: dict[int, Sequence] = {}
        for (request_id, length, request, is_dummy), prompt, admission in zip(
            arriving, prompts, batch.admitted, strict=True
        ):
            reused = admission.tokens_reused
            reserved = length if self._ahead is None else min(length, reused + self._ahead)
            came[request_id] = Sequence(request, prompt, reused, reserved, is_dummy=is_dummy)
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

    def _fill(self, dummy: Sequence) -> None:
        """Reserve the whole prompt of a dummy, as if it were computed meanwhile: it stands for one that has been."""
        while self._ahead is not None and dummy.length < dummy.prompt_length:
            count = min(self._ahead, dummy.prompt_length - dummy.length)
            self.core.add_tokens([dummy.request_id], [count], computed=[dummy.length])
            dummy.computed = dummy.length
            dummy.length += count

    def _reserve(self) -> None:
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
