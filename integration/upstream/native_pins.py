"""Somebody who pins blocks of prompts and reads them from the host, in no order with any stream.

What can be found must be there: a block that is offered before it is computed, or before its copy has ended, is read as
something else.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

from integration.upstream.contents import prefix_names
from integration.upstream.native_engine import MemoryEngine
from integration.upstream.promises import UNHEARD
from trtllm_kvfix import native

PROMPTS_PER_LOOK = 6
READER = 2**62  # its request's id


class Pinner:
    def __init__(self, engine: MemoryEngine, prompts: Iterable[list[int]]) -> None:
        self._engine = engine
        self._core: native.BlockManager = engine.manager.impl.core
        self._block = self._core.config.tokens_per_block
        self._prompts = list(prompts)
        self._chance = random.Random(1)
        self.blocks_read = 0

    def watch(self, impl: Any) -> None:
        """Look whenever something may have become findable."""
        for name in ("sync_transfer_manager_with_buffer_manager", "store_context_blocks", "remove_sequence"):
            setattr(impl, name, self._looking(getattr(impl, name)))

    def _looking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            found = method(*args)
            self._look()
            return found

        return call

    def _look(self) -> None:
        for prompt in self._chance.sample(self._prompts, min(PROMPTS_PER_LOOK, len(self._prompts))):
            self._read(prompt, self._found(prompt))

    def _found(self, prompt: list[int]) -> int:
        """Leading tokens of whole blocks in primary. To look for others would move blocks that the server has."""
        found = self._core.analyze_prefix_reuse(native.SequenceRequest(READER, [*prompt, UNHEARD]))
        free = min(window.primary.free - window.kept for window in self._core.get_kv_cache_stats().windows)
        return 0 if found.blocks_host or free < 1 else found.tokens - found.tokens % self._block

    def _read(self, prompt: list[int], tokens: int) -> None:
        if not tokens:
            return
        names = prefix_names(prompt)
        self._core.add_sequence(native.SequenceRequest(READER, [*prompt[:tokens], UNHEARD]))
        windows: list[int | None] = [*(self._core.config.window_sizes or (None,))]
        for window in windows:
            (blocks,) = self._core.get_cache_block_ids(READER, window)
            held = {number: block for number, block in enumerate(blocks[:-1]) if block >= 0}
            for number, (slot, tier) in zip(held, self._core.pin_blocks_by_id(list(held.values())), strict=True):
                self._engine.read_block(names, number, slot, tier, window)
            self._core.unpin_blocks_by_id(list(held.values()))
            self.blocks_read += len(held)
        self._core.remove_sequence(READER, store=False)
