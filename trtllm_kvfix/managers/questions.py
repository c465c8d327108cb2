"""The questions of a capacity scheduler, for one beam. Numbers of blocks are lists: one for each window, ascending.

A cached block that a request would reuse counts as free, and admission takes it. A block that another request holds is
not taken again.
"""

from collections.abc import Iterable
from operator import le, sub
from typing import Any, NamedTuple

from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.layout import CacheLayout, Window
from trtllm_kvfix.managers.prompts import beginning, prompt_of
from trtllm_kvfix.native import Prompt, Starting

Blocks = list[int]


def less(blocks: Blocks, others: Blocks) -> Blocks:
    return list(map(sub, blocks, others))


def fits(blocks: Blocks, free: Blocks) -> bool:
    return all(map(le, blocks, free))


class Prefix(NamedTuple):
    """The part of a prompt that is cached now."""

    prompt: Prompt
    tokens: int  # whole blocks that admission will find, whatever the rest of its batch
    blocks: int  # full cached blocks; the last token of a prompt is always computed, even if its block is cached
    is_whole: bool  # all full blocks are cached

    @property
    def first_new(self) -> int | None:
        return None if self.is_whole else self.blocks


class Questions:
    def __init__(self, books: Books, layout: CacheLayout) -> None:
        self._core = books.core
        self._requests = books.requests
        self._live = books.live  # once all notes are settled
        self.ask = books.requests.ask
        self._layout = layout
        self._ahead = layout.ahead
        self._tokens_per_block = layout.tokens_per_block

    def free_blocks(self) -> Blocks:
        """Blocks that are free, or cached without an owner, and not kept for a prompt that comes in chunks."""
        return self._core.free_blocks_without([])

    def by_progress(self, active_requests: Iterable[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(requests that run, that wait for their first block, that hold blocks and wait for a load)."""
        live = self._live
        started: list[Any] = []
        waiting: list[Any] = []
        loading: list[Any] = []
        for request in active_requests:
            if request.request_id in live:
                if request.is_generation_in_progress_state or request.is_context_init_state:
                    started.append(request)
                elif not request.is_generation_complete_state:
                    loading.append(request)
            elif request.is_context_init_state:
                waiting.append(request)
        return started, waiting, loading

    def still_to_take(self, started: Iterable[Any]) -> Blocks:
        """Blocks that these requests will take until their last tokens, besides those held or kept for them.

        No request is promised what another still holds.
        """
        return self._requests.blocks_to_complete([each.request_id for each in started])

    def to_completion(self, request: Any) -> Blocks:
        """The same for one request. One without blocks takes those of its prompt that are not held, and its growth."""
        if request.request_id in self._live:
            return self.still_to_take([request])
        return self.to_admit_closely(prompt_of(request), request.max_new_tokens)

    def to_admit(self, prompt: Prompt, ahead: int) -> Blocks:
        """Blocks that a request without any takes until it has grown so far, if a copy's source is held so long."""
        return self._core.blocks_to_admit(prompt.sequence, tokens_new_max=ahead, chunk_tokens=self._ahead)

    def to_admit_closely(self, prompt: Prompt, ahead: int) -> Blocks:
        """The same, at a higher cost: a copy's source is held while the request is admitted, not while it grows."""
        layout = self._layout
        held_most = [layout.held_most(each, prompt.num_tokens + ahead) for each in layout.windows]
        now = self._core.blocks_to_admit(prompt.sequence, chunk_tokens=self._ahead)
        later = self.to_admit(prompt, ahead)
        return [max(a, min(b, most)) for a, b, most in zip(now, later, held_most, strict=True)]

    def fits_closely(self, starting: Starting, prompt: Prompt, ahead: int) -> bool:
        return starting.fits(self.to_admit_closely(prompt, ahead))

    def next_step(self, started: Iterable[Any]) -> Blocks:
        """Blocks that these requests take for their next tokens. A prompt has its blocks already."""
        growing = [each.request_id for each in started if each.is_generation_in_progress_state]
        return self._in_each(self._core.blocks_to_grow(growing, [1] * len(growing)))

    def free_without(self, paused: Iterable[Any]) -> Blocks:
        """`free_blocks`, if these requests had given theirs back."""
        return self._core.free_blocks_without([each.request_id for each in paused])

    def one_step(self, request: Any, window: Window, *, two_steps: bool) -> int:
        if request.is_context_init_state and request.is_first_context_chunk:
            return self._layout.held_most(window, request.prompt_len)
        if not (request.is_generation_in_progress_state and request.request_id in self._live):
            return 0
        length = self._core.get_token_count(request.request_id)
        left = max(0, request.max_new_tokens - (length - request.prompt_len))
        return self._blocks(length + min(2 if two_steps else 1, left)) - self._blocks(length)

    def prefix_of(self, prompt: Prompt) -> Prefix:
        unit = self._tokens_per_block
        reuse = self._core.analyze_prefix_reuse(prompt.sequence, chunk_tokens=self._ahead).tokens
        whole = prompt.num_tokens // unit
        cached = whole if reuse == prompt.num_tokens - 1 else reuse // unit
        return Prefix(prompt, reuse // unit * unit, cached, cached >= whole)

    def held_blocks(self, prefix: Prefix) -> int:
        """Number of its cached blocks that a sequence holds."""
        if not prefix.blocks:
            return 0
        # With one more token the last block is taken as a whole, and only a block for that token is new.
        asked = beginning(prefix.prompt, prefix.blocks * self._tokens_per_block, and_then=0)
        *_, taken = self._core.blocks_to_admit(asked)  # the largest window claims most
        return prefix.blocks + 1 - taken

    def starting(self, free: Blocks) -> Starting:
        """One pass over the requests that wait, with so many blocks for them."""
        return self._requests.start(free)

    def _in_each(self, blocks: int) -> Blocks:
        return [blocks] * len(self._layout.windows)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._tokens_per_block)
