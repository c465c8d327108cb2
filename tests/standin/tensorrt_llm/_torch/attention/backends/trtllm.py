"""Attention's metadata has moved here (surface 9)."""

from ...._standin.attention import AttentionMetadata


class TrtllmAttentionMetadata(AttentionMetadata):
    def prepare(self) -> None:
        """The lengths are refilled by the next step, and nothing stages them (surface 8)."""
        count = self.fill_prompt_lens()
        self.prompt_lens_cuda[:count].copy_(self.prompt_lens_cpu[:count], non_blocking=True)
        self.ship_block_offsets()
