"""Somebody who pins blocks by their hashes and reads them from the host, in no order with any stream.

What can be found must be there: a block that is offered before it is computed, or before its copy has ended, is read as
something else.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

from integration.upstream.contents import prefix_names
from integration.upstream.native_engine import MemoryEngine
from trtllm_kvfix import native

PROMPTS_PER_LOOK = 6


class Pinner:
    def __init__(self, engine: MemoryEngine, prompts: Iterable[list[int]]) -> None:
        self._engine = engine
        self._core: native.BlockManager = engine.manager.impl.core
        self._prompts = [(prompt, self._hashes(prompt)) for prompt in prompts]
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
        for prompt, hashes in self._chance.sample(self._prompts, min(PROMPTS_PER_LOOK, len(self._prompts))):
            names = prefix_names(prompt)
            windows: list[int | None] = [*(self._core.config.window_sizes or (None,))]
            for window in windows:
                found = self._core.find_and_pin_blocks_by_hash(hashes, stop_on_miss=False, window_size=window)
                for number, block in enumerate(found):
                    if block is None:
                        continue
                    self._engine.read_block(names, number, block.slot, block.tier, window)
                    self._core.unpin_blocks_by_id([block.block_id], tier=block.tier)
                    self.blocks_read += 1

    def _hashes(self, prompt: list[int]) -> list[int]:
        return native.block_hashes(native.SequenceRequest(0, prompt), self._core.config)
