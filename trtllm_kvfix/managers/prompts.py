"""What of a request names its blocks: tokens, LoRA, salt, images. Read once for each prompt and kept on the request.

The bound request takes attributes, so what is kept goes with it. Dummies, and inputs that tokens do not name, get a
root of their own: nobody finds their blocks.
"""

import struct
from collections.abc import Iterator
from itertools import count
from types import FunctionType
from typing import Any

from trtllm_kvfix.managers import retention
from trtllm_kvfix.native import BlockManagerConfig, SequenceRequest, block_hashes

_KEPT = "_kvfix_prompt"
_serials = count()
# Inputs of a request that its tokens do not name.
_EMBEDDINGS = ("prompt_embedding_table", "multimodal_embedding")


class Prompt:
    """One prompt as the core takes it."""

    def __init__(self, request: Any, config: BlockManagerConfig) -> None:
        self.is_private = is_private(request)
        kept = retention.of(request)
        self.has_duration = kept is not None and kept.has_duration
        self.sequence = SequenceRequest(
            request.request_id,
            request.get_tokens(0),
            lora_id=request.lora_task_id,
            salt=f"private {next(_serials)}" if self.is_private else request.cache_salt_id,
            extra_keys=list(_images(request)),
            retention=None if kept is None else kept.for_the_core(),
        )
        self._config = config
        self._hashes: list[int] | None = None

    @property
    def length(self) -> int:
        return self.sequence.num_tokens

    def hash_of(self, block: int) -> int | None:
        """Names the prompt up to the end of this block; None where it is not full."""
        if self._hashes is None:
            self._hashes = [] if self.is_private else block_hashes(self.sequence, self._config)
        return self._hashes[block] if block < len(self._hashes) else None


def prompt_of(request: Any, config: BlockManagerConfig) -> Prompt:
    """A request that was preempted has a longer prompt than before."""
    kept: Prompt | None = getattr(request, _KEPT, None)
    if kept is None or kept.length != request.get_num_tokens(0) or kept.sequence.request_id != request.request_id:
        kept = Prompt(request, config)
        setattr(request, _KEPT, kept)
    return kept


def forget_prompt(request: Any) -> None:
    """It has been admitted, so the core has it."""
    setattr(request, _KEPT, None)


def is_private(request: Any) -> bool:
    if request.is_dummy_request:
        return True
    return not request.multimodal_hashes and any(getattr(request, name, None) is not None for name in _EMBEDDINGS)


def bound_half(request: Any) -> Any:
    """A copy of the part that C++ has, as C++ hands it out. Upstream's Python half hides some of its names."""
    kinds = [each for each in type(request).__mro__ if "__init__" in vars(each)]
    kind: Any = next(each for each in kinds if not isinstance(vars(each)["__init__"], FunctionType))
    return kind(request)


def _images(request: Any) -> Iterator[tuple[int, int, bytes]]:
    """(first token, end, digest), ascending."""
    hashes = request.multimodal_hashes
    if not hashes:
        return
    spans = zip(request.multimodal_positions, request.multimodal_lengths, hashes, strict=True)
    for start, length, words in sorted(spans):
        yield start, start + length, struct.pack(f"<{len(words)}I", *(word & 0xFFFFFFFF for word in words))


def tell_reuse(request: Any, reused: int, tokens_per_block: int) -> None:
    """Where the request stands after admission. Newer builds have a call for it, older ones two fields.

    A chunk that is not the last one ends on a block's boundary.
    """
    if reused == 0:
        return
    if hasattr(request, "set_prepopulated_prompt_len"):
        request.set_prepopulated_prompt_len(reused, tokens_per_block)
        return
    size = request.context_chunk_size
    if reused + size < request.prompt_len:
        size = (reused + size) // tokens_per_block * tokens_per_block - reused
    request.context_current_position = reused
    request.context_chunk_size = size
