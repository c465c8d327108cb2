"""The part of `.impl` that identifies blocks: connectors ask for hashes and priorities, routers for prefixes.

Numbers of blocks are slots, as everywhere in `.impl`. Hashes are those of the events: the first half of ours.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.events import FIRST_HALF
from trtllm_kvfix.managers.layout import Layout
from trtllm_kvfix.managers.locks import answering, locked
from trtllm_kvfix.managers.prompts import Prompt, prompt_of
from trtllm_kvfix.managers.questions import Prefix, Questions
from trtllm_kvfix.native import BlockManager, SequenceRequest, block_hashes

PRIORITY_OF_NOBODY = 35  # upstream's answer for a block that it does not find


class PrefixReuseSummary(NamedTuple):
    """The whole cached blocks of a prompt, and its tokens up to the end of the first block that is not cached."""

    reusable_blocks_allocated: int  # which some sequence holds
    reusable_blocks_all: int
    first_new_block: tuple[int, ...] | None


class Named:
    core: BlockManager
    layout: Layout
    tokens_per_block: int
    _books: Books
    _lock: threading.RLock
    _questions: Questions

    @answering
    def commit_and_get_block_hashes_for_request(self, llm_request: Any, window_size: int) -> list[int]:
        """The hashes of all blocks that its tokens fill, those of its answer too, whether they are stored or not."""
        del window_size
        sequence = self._books.live[llm_request.request_id]
        full = llm_request.get_num_tokens(0) // self.tokens_per_block
        if len(sequence.names) != full:
            names = self.core.commit_and_get_block_hashes(sequence.request_id)
            if full > len(names) and not sequence.is_private:  # the core does not know what was generated
                names = block_hashes(Prompt(llm_request).sequence, self.core.config)
            sequence.names = tuple(each & FIRST_HALF for each in names)
        return list(sequence.names)

    @answering
    def get_priority_by_block_id(self, block_id: int, window_size: int) -> int:
        block = self._books.block_in(block_id, self.layout.window_of(window_size))
        return PRIORITY_OF_NOBODY if block is None else self.core.get_priority_by_block_id(block)

    def get_memory_pool_block_indices(self, block_ids: Sequence[int], window_size: int) -> list[int]:
        del window_size
        return list(block_ids)

    @answering
    def get_num_front_blocks_removed(self, request_id: int, window_size: int) -> int:
        return self.core.get_num_front_blocks_removed(request_id, self.layout.window_of(window_size).name)

    @locked
    def analyze_prefix_reuse(self, unique_tokens: Any, llm_request: Any) -> PrefixReuseSummary:
        del unique_tokens  # the request has them
        prefix = self._questions.prefix_of(prompt_of(llm_request))
        return PrefixReuseSummary(self._questions.held_blocks(prefix), prefix.blocks, self._first_new(prefix))

    @locked
    def find_new_context_block(self, unique_tokens: Any, llm_request: Any) -> tuple[int, ...] | None:
        """The first block that is not cached, for older builds: a value that can be compared and counted."""
        del unique_tokens
        return self._first_new(self._questions.prefix_of(prompt_of(llm_request)))

    def _first_new(self, prefix: Prefix) -> tuple[int, ...] | None:
        if prefix.first_new is None:
            return None
        return tuple(prefix.prompt.sequence.tokens[: (prefix.first_new + 1) * self.tokens_per_block])

    @answering
    def truncate_blocks(self, target_tokens: Sequence[int], num_tokens_to_keep: int) -> None:
        """Truncates a conversation without LoRA and salt: upstream's call names neither."""
        if target_tokens:
            conversation = SequenceRequest(0, target_tokens)
            self.core.truncate_blocks(conversation, min(num_tokens_to_keep, len(target_tokens)))
