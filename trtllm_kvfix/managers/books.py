"""Between upstream's calls and the core: one by one becomes a batch, and what upstream says late is waited for.

`add_sequence` and `add_token` only note what is asked. The first call that needs an answer admits everybody noted in
one batch, so that all claims come before any allocation, then grows everybody in one call, then submits the copies.
Growth comes second, because it may evict what the batch is to reuse. Until then the requests' positions are not
touched: upstream goes through the whole batch asking each whether it is at its first chunk.
"""

from typing import Any

from trtllm_kvfix.managers.copies import Copies
from trtllm_kvfix.managers.prompts import Prompt, forget_prompt, prompt_of, tell_reuse
from trtllm_kvfix.managers.sequence import Sequence
from trtllm_kvfix.native import BlockManager, OutOfBlocks


class Books:
    """The caller holds a lock around every call."""

    def __init__(self, core: BlockManager, copies: Copies, tokens_per_block: int) -> None:
        self.core = core
        self.live: dict[int, Sequence] = {}
        self._in_prompt: dict[int, Sequence] = {}  # of the live ones, whose positions still move
        self._copies = copies
        self._tokens_per_block = tokens_per_block
        self.config = core.config
        self._arriving: dict[int, tuple[Any, Prompt]] = {}
        self._growing: dict[int, int] = {}

    # ---- what upstream asks for ----

    def add(self, request_id: int, length: int, beam_width: int, request: Any) -> None:
        if beam_width != 1:
            raise RuntimeError(f"request {request_id} has {beam_width} beams; one is served")
        if request_id in self.live or request_id in self._arriving:
            raise RuntimeError(f"request {request_id} was added and not removed; adding it again would lose its blocks")
        prompt = prompt_of(request, self.config)
        if prompt.length != length or prompt.sequence.request_id != request_id:
            raise RuntimeError(
                f"request {request_id} is to be added with {length} tokens, but is request "
                f"{prompt.sequence.request_id} with {prompt.length}"
            )
        self._arriving[request_id] = (request, prompt)
        if request.is_dummy_request:
            self.settle()  # upstream expects the refusal of a dummy from this very call

    def grow(self, request_id: int) -> None:
        sequence = self.live.get(request_id)
        if sequence is None and request_id not in self._arriving:
            raise RuntimeError(f"request {request_id} has no sequence to grow")
        self._growing[request_id] = self._growing.get(request_id, 0) + 1
        if sequence is not None and sequence.is_dummy:
            self.settle()

    def report(self, request: Any) -> None:
        """A chunk of its prompt has been computed. Unknown requests have ended before."""
        sequence = self.live.get(request.request_id)
        if sequence is None or sequence.is_private:
            return
        computed = sequence.reported()
        self.core.store_context_blocks(request.request_id, computed)

    def rewind(self, request_id: int, count: int) -> None:
        self.settle()
        self.core.rewind_kv_cache(request_id, count)
        self.live[request_id].length -= count

    def remove(self, request_id: int, request: Any) -> None:
        """Upstream also frees requests that were never added. Without a request nothing more is kept for reuse."""
        self._growing.pop(request_id, None)
        if self._arriving.pop(request_id, None) is not None:
            return
        sequence = self.live.pop(request_id, None)
        self._in_prompt.pop(request_id, None)
        if sequence is None:
            return
        if request is None or sequence.is_private or request.is_dummy_request:
            self.core.remove_sequence(request_id, store=False)
        else:
            tokens, computed = sequence.known_at_end(request)
            self.core.remove_sequence(request_id, tokens=tokens, computed=computed)
        if all(each.is_dummy for each in self.live.values()):
            self.end_copies()  # no step will come to do it, and nobody could be admitted

    # ---- when it happens ----

    def begin_iteration(self) -> None:
        """Everything before is settled; chunks that were enqueued since are noted."""
        self.end_copies()
        for request_id, sequence in list(self._in_prompt.items()):
            sequence.look()
            if not sequence.is_in_prompt:
                del self._in_prompt[request_id]

    def settle(self) -> None:
        if self._arriving:
            self._admit()
        if self._growing:
            self._reserve()
        self._copies.submit()

    def end_copies(self) -> None:
        self._copies.submit()
        self._copies.end()

    def _admit(self) -> None:
        arriving, self._arriving = self._arriving, {}
        try:
            batch = self.core.add_sequence_batch([prompt.sequence for _, prompt in arriving.values()])
        except OutOfBlocks:
            for request_id in arriving:
                self._growing.pop(request_id, None)
            raise
        for admission in batch.admitted:
            request, prompt = arriving[admission.request_id]
            reused = admission.tokens_reused
            sequence = Sequence(request, prompt, reused)
            self.live[admission.request_id] = self._in_prompt[admission.request_id] = sequence
            forget_prompt(request)
            tell_reuse(request, reused, self._tokens_per_block)

    def _reserve(self) -> None:
        growing, self._growing = self._growing, {}
        ids, counts = list(growing), list(growing.values())
        try:
            self.core.add_tokens(ids, counts)
        except OutOfBlocks:
            # What copies of this iteration hold comes free when they have ended: the same moment on every rank.
            self.end_copies()
            self.core.add_tokens(ids, counts)
        for request_id, count in growing.items():
            self.live[request_id].length += count
