"""What a capacity scheduler asks: arithmetic over one window of full attention and one beam.

Reuse is not subtracted: a block that a request would reuse is cached, hence counted as free, and admission takes it
from there.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.prompts import Prompt, prompt_of
from trtllm_kvfix.managers.sequence import Sequence


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

    def by_progress(self, active_requests: Iterable[Any]) -> tuple[list[Any], int, list[Any]]:
        """(those that hold blocks, the blocks that these will still take, those that wait for their first)."""
        live = self._books.live
        started: list[Any] = []
        waiting: list[Any] = []
        reserved = 0
        for request in active_requests:
            sequence = live.get(request.request_id)
            if sequence is None:
                if request.is_context_init_state:
                    waiting.append(request)
            elif request.is_generation_in_progress_state or request.is_context_init_state:
                started.append(request)
                reserved += self._left(sequence)
        return started, reserved, waiting

    def to_completion(self, request: Any) -> int:
        """Blocks that it will take until its last token, besides those that it holds."""
        sequence = self._books.live.get(request.request_id)
        if sequence is not None:
            return self._left(sequence)
        return self._blocks(request.prompt_len + request.max_new_tokens)

    def _left(self, sequence: Sequence) -> int:
        unit = self._tokens_per_block
        return max(0, -(-sequence.most // unit) + (-sequence.length // unit))

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
