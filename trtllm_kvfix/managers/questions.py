"""What a capacity scheduler asks, of one window of full attention and one beam.

A block that a request would reuse is free where it is cached, and admission takes it from there. One that another
request holds is not taken again.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.prompts import Prompt, prompt_of


class Prefix(NamedTuple):
    """What of a prompt is cached now."""

    prompt: Prompt
    tokens: int  # whole blocks that admission will find, whatever else is in its batch
    first_new: int | None  # the first full block that is not; None where all are


class Questions:
    def __init__(self, books: Books, tokens_per_block: int) -> None:
        self._books = books
        self._tokens_per_block = tokens_per_block

    def free_blocks(self) -> int:
        """Free, or cached and nobody's."""
        primary = self._books.core.get_kv_cache_stats().windows[0].primary
        return primary.free + primary.cached

    def by_progress(self, active_requests: Iterable[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(those that run, those that wait for their first block, those that hold blocks and wait for a load)."""
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

    def still_to_take(self, started: Iterable[Any]) -> int:
        """Blocks that these will take until their last tokens, besides those that they hold."""
        sequences = [self._books.live[each.request_id] for each in started]
        left = [max(0, each.most - each.length) for each in sequences]
        return self._books.core.blocks_to_grow([each.request_id for each in sequences], left)

    def to_completion(self, request: Any) -> int:
        """The same of one. A request that has none takes those of its prompt that nobody holds, and what it grows."""
        if request.request_id in self._books.live:
            return self.still_to_take([request])
        return self.to_admit(request, request.max_new_tokens)

    def to_admit(self, request: Any, ahead: int) -> int:
        """Of one that has none, until it has grown by so many tokens."""
        prompt = prompt_of(request, self._books.config)
        (blocks,) = self._books.core.blocks_to_admit(prompt.sequence, tokens_new_max=ahead)
        return blocks

    def next_step(self, started: Iterable[Any]) -> int:
        """Blocks that these take for their next tokens. A prompt has its blocks."""
        growing = [each.request_id for each in started if each.is_generation_in_progress_state]
        return self._books.core.blocks_to_grow(growing, [1] * len(growing))

    def free_without(self, paused: Iterable[Any]) -> int:
        """`free_blocks`, had these given theirs back."""
        (blocks,) = self._books.core.free_blocks_without([each.request_id for each in paused])
        return blocks

    def one_step(self, request: Any, *, two_steps: bool) -> int:
        if request.is_context_init_state and request.is_first_context_chunk:
            return self._blocks(request.prompt_len)
        sequence = self._books.live.get(request.request_id)
        if sequence is None or not request.is_generation_in_progress_state:
            return 0
        left = max(0, request.max_new_tokens - (sequence.length - sequence.prompt_length))
        return self._blocks(sequence.length + min(2 if two_steps else 1, left)) - self._blocks(sequence.length)

    def prefix_of(self, request: Any) -> Prefix:
        unit = self._tokens_per_block
        prompt = prompt_of(request, self._books.config)
        reuse = self._books.core.analyze_prefix_reuse(prompt.sequence).tokens
        whole = prompt.length // unit
        # The last token of a prompt is computed always, also where its block is cached.
        cached = whole if reuse == prompt.length - 1 else reuse // unit
        return Prefix(prompt, reuse // unit * unit, None if cached >= whole else cached)

    def being_computed(self) -> set[int]:
        """The hashes of the blocks that live prompts are about to bring into the cache: the next one of each."""
        unit = self._tokens_per_block
        prompts = [(each.prompt, each.computed) for each in self._books.live.values() if each.prompt is not None]
        names = {prompt.hash_of(computed // unit) for prompt, computed in prompts if not prompt.is_private}
        return {name for name in names if name is not None}

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._tokens_per_block)
