"""The questions of a capacity scheduler, for one beam. Numbers of blocks are lists: one for each window, ascending.

A cached block that a request would reuse counts as free, and admission takes it. A block that another request holds is
not taken again.
"""

from collections.abc import Iterable
from operator import le, sub
from typing import Any, NamedTuple

from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.layout import CacheLayout, Window, touched
from trtllm_kvfix.managers.prompts import Prompt, prompt_of

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
        self._books = books
        self._layout = layout
        self._ahead = layout.ahead
        self._tokens_per_block = layout.tokens_per_block

    def free_blocks(self) -> Blocks:
        """Blocks that are free, or cached without an owner, and not kept for a prompt that comes in chunks."""
        return self._books.core.free_blocks_without([])

    def by_progress(self, active_requests: Iterable[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(requests that run, that wait for their first block, that hold blocks and wait for a load)."""
        live = self._books.live
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

        No request is promised what another still holds: as if no block left its window meanwhile, or, where prompts
        come in chunks, as if none left it before the answer slides.
        """
        sequences = [self._books.live[each.request_id] for each in started]
        if self._ahead is not None:
            grow = [self._blocks(each.most) - self._blocks(max(each.length, each.prompt_length)) for each in sequences]
            return [sum(min(each, slides) for each in grow) for slides in map(self._to_slide, self._layout.windows)]
        left = [max(0, each.most - each.length) for each in sequences]
        return self._in_each(self._books.core.blocks_to_grow([each.request_id for each in sequences], left))

    def to_completion(self, request: Any) -> Blocks:
        """The same for one request. One without blocks takes those of its prompt that are not held, and its growth."""
        if request.request_id in self._books.live:
            return self.still_to_take([request])
        return self.to_admit_closely(prompt_of(request), request.max_new_tokens)

    def to_admit(self, prompt: Prompt, ahead: int) -> Blocks:
        """Blocks that a request without any takes until it has grown so far, if a copy's source is held so long."""
        return self._books.core.blocks_to_admit(prompt.sequence, tokens_new_max=ahead, chunk_tokens=self._ahead)

    def to_admit_closely(self, prompt: Prompt, ahead: int) -> Blocks:
        """The same, at a higher cost: a copy's source is held while the request is admitted, not while it grows."""
        layout = self._layout
        held_most = [layout.held_most(each, prompt.length + ahead) for each in layout.windows]
        now = self._books.core.blocks_to_admit(prompt.sequence, chunk_tokens=self._ahead)
        later = self.to_admit(prompt, ahead)
        return [max(a, min(b, most)) for a, b, most in zip(now, later, held_most, strict=True)]

    def next_step(self, started: Iterable[Any]) -> Blocks:
        """Blocks that these requests take for their next tokens. A prompt has its blocks already."""
        growing = [each.request_id for each in started if each.is_generation_in_progress_state]
        return self._in_each(self._books.core.blocks_to_grow(growing, [1] * len(growing)))

    def free_without(self, paused: Iterable[Any]) -> Blocks:
        """`free_blocks`, if these requests had given theirs back."""
        return self._books.core.free_blocks_without([each.request_id for each in paused])

    def one_step(self, request: Any, window: Window, *, two_steps: bool) -> int:
        if request.is_context_init_state and request.is_first_context_chunk:
            return self._layout.held_most(window, request.prompt_len)
        sequence = self._books.live.get(request.request_id)
        if sequence is None or not request.is_generation_in_progress_state:
            return 0
        left = max(0, request.max_new_tokens - (sequence.length - sequence.prompt_length))
        return self._blocks(sequence.length + min(2 if two_steps else 1, left)) - self._blocks(sequence.length)

    def prefix_of(self, prompt: Prompt) -> Prefix:
        unit = self._tokens_per_block
        reuse = self._books.core.analyze_prefix_reuse(prompt.sequence, chunk_tokens=self._ahead).tokens
        whole = prompt.length // unit
        cached = whole if reuse == prompt.length - 1 else reuse // unit
        return Prefix(prompt, reuse // unit * unit, cached, cached >= whole)

    def held_blocks(self, prefix: Prefix) -> int:
        """Number of its cached blocks that a sequence holds."""
        if not prefix.blocks:
            return 0
        # With one more token the last block is taken as a whole, and only a block for that token is new.
        asked = prefix.prompt.begins(prefix.blocks * self._tokens_per_block, and_then=0)
        *_, taken = self._books.core.blocks_to_admit(asked)  # the largest window claims most
        return prefix.blocks + 1 - taken

    def being_computed(self) -> set[int]:
        """The hashes of the blocks that live prompts will store next, one for each prompt."""
        unit = self._tokens_per_block
        prompts = [(each.prompt, each.computed) for each in self._books.live.values() if each.prompt is not None]
        names = {
            prompt.hash_of(computed // unit, self._books.config)
            for prompt, computed in prompts
            if not prompt.is_private
        }
        return {name for name in names if name is not None}

    def name_of(self, prompt: Prompt, block: int) -> int | None:
        """The hash of the prompt up to the end of this block; None if the block is not full."""
        return prompt.hash_of(block, self._books.config)

    def _in_each(self, blocks: int) -> Blocks:
        return [blocks] * len(self._layout.windows)

    def _to_slide(self, window: Window) -> int:
        """Blocks that an answer takes until it slides. One leaves when a step has ended and the next one is taken."""
        return touched(window.size + 2 * self._tokens_per_block, self._tokens_per_block)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._tokens_per_block)
