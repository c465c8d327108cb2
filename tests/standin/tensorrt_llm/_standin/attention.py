"""Attention's metadata keeps host buffers from step to step; each step refills them in place and ships them.

The copies are in the files where upstream has them: that is where `doctor` reads.
"""

from dataclasses import dataclass, field
from typing import Any

from .tensors import tensors
from .variant import since


@dataclass(kw_only=True)
class AttentionMetadata:
    """One object serves every step, as upstream's does outside CUDA graphs."""

    max_num_sequences: int
    kv_cache_manager: Any
    draft_kv_cache_manager: Any = None
    beam_width: int = 1
    request_ids: list[int] = field(default_factory=list)
    prompt_lens: list[int] = field(default_factory=list)
    num_contexts: int = 0
    max_blocks: int | None = None  # since D: caps the copied width (surface 1.6)

    def __post_init__(self) -> None:
        manager = self.kv_cache_manager
        pools = getattr(manager, "num_attention_op_pools", manager.num_pools)
        shape = (pools, self.max_num_sequences, 2, manager.max_blocks_per_seq)
        self.kv_cache_block_offsets = tensors().on_device(*shape)
        if since("B"):
            # An alias of the manager's buffer object, taken once (surface 1.7).
            self.host_kv_cache_block_offsets = manager.host_kv_cache_block_offsets
        else:
            self.host_kv_cache_block_offsets = tensors().pinned(*shape)
        self.prompt_lens_cpu = tensors().pinned(self.max_num_sequences)
        self.prompt_lens_cuda = tensors().on_device(self.max_num_sequences)
        if self.draft_kv_cache_manager is not None:
            draft = self.draft_kv_cache_manager
            draft_shape = (draft.num_pools, self.max_num_sequences, 2, draft.max_blocks_per_seq)
            self.draft_kv_cache_block_offsets = tensors().on_device(*draft_shape)

    @property
    def num_seqs(self) -> int:
        return self.num_contexts + (len(self.request_ids) - self.num_contexts) * self.beam_width

    @property
    def num_generations(self) -> int:
        return len(self.request_ids) - self.num_contexts

    def fill_prompt_lens(self) -> int:
        self.prompt_lens_cpu.numpy()[: len(self.request_ids)] = self.prompt_lens
        return len(self.request_ids)

    def ship_block_offsets(self) -> None:
        """The managers, which own the tables, ship them. `max_blocks` alone is given by keyword (surface 1.6)."""
        at = (self.request_ids, self.beam_width, self.num_contexts, self.num_seqs)
        capped = {} if self.max_blocks is None else {"max_blocks": self.max_blocks}
        if hasattr(self.kv_cache_manager, "compute_sliding_block_tables"):  # DeepSeek-V4's metadata asks for them first
            self.kv_cache_manager.compute_sliding_block_tables(self.request_ids, self.num_contexts)
        self.kv_cache_manager.copy_batch_block_offsets(self.kv_cache_block_offsets, *at, **capped)
        if self.draft_kv_cache_manager is not None:
            self.draft_kv_cache_manager.copy_batch_block_offsets(self.draft_kv_cache_block_offsets, *at, **capped)
