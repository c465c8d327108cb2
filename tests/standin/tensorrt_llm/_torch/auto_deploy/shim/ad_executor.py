"""AutoDeploy's engine: no `wait_for_input_copy`, so the executor waits for nothing (surface 2.4, window e)."""

from typing import Any

from ...._standin.attention import AttentionMetadata
from ...._standin.engine import Engine


class PlannedMetadata(AttentionMetadata):
    def prepare(self) -> None:
        """Names `num_context` (surface 1.6), so a replacement must keep the name as well as the position."""
        count = self.fill_prompt_lens()
        self.prompt_lens_cuda[:count].copy_(self.prompt_lens_cpu[:count], non_blocking=True)
        self.kv_cache_manager.copy_batch_block_offsets(
            self.kv_cache_block_offsets,
            self.request_ids,
            self.beam_width,
            num_context=self.num_contexts,
            num_seqs=self.num_seqs,
        )


class ADEngine(Engine):
    metadata_class: Any = PlannedMetadata
