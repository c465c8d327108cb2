"""Attention's metadata lives here until it moves (surface 9)."""

from types import SimpleNamespace

from ..._standin.attention import AttentionMetadata
from ..._standin.variant import MANGLED, before


class TrtllmAttentionMetadata(AttentionMetadata):
    """Enqueues the copies of a step's host buffers; each is refilled by the next step (surface 8)."""

    def _ship_prompt_lens(self) -> None:
        count = self.fill_prompt_lens()
        self.prompt_lens_cuda[:count].copy_(self.prompt_lens_cpu[:count], non_blocking=True)

    if before("B"):

        def prepare(self) -> None:
            """The manager has no method, so the metadata fills and ships a table of its own (surface 1.6)."""
            self._ship_prompt_lens()
            host, contexts, impl = self.host_kv_cache_block_offsets, self.num_contexts, self.kv_cache_manager.impl
            impl.copy_batch_block_offsets(host, self.request_ids[:contexts], 1, 0)
            impl.copy_batch_block_offsets(host, self.request_ids[contexts:], self.beam_width, contexts)
            rows = self.num_seqs
            self.kv_cache_block_offsets[:, :rows].copy_(self.host_kv_cache_block_offsets[:, :rows], non_blocking=True)

    elif MANGLED:

        def prepare(self) -> None:
            """The manager's method takes an object."""
            self._ship_prompt_lens()
            self.kv_cache_manager.copy_batch_block_offsets(
                SimpleNamespace(
                    dst=self.kv_cache_block_offsets,
                    request_ids=self.request_ids,
                    beam_width=self.beam_width,
                    num_contexts=self.num_contexts,
                    num_seqs=self.num_seqs,
                )
            )

    else:

        def prepare(self) -> None:
            self._ship_prompt_lens()
            self.ship_block_offsets()
