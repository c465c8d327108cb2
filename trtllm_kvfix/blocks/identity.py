"""What makes two prefixes the same: tokens, LoRA adapter, salt, and digests of what images and the like stand for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.native import Retention, SequenceRequest

# A prompt with one of these has contents that its tokens do not tell, and that nobody has given a digest of.
OPAQUE = ("prompt_embedding_table", "encoder_tokens", "encoder_input_features")


@dataclass(frozen=True)
class Identity:
    lora_id: int | None = None
    salt: str | bytes | int | None = None
    extra_keys: tuple[tuple[int, int, bytes], ...] = ()

    def sequence(self, number: int, tokens: NDArray[np.int32], retention: Retention | None = None) -> SequenceRequest:
        extra_keys = [
            (start, min(end, len(tokens)), digest) for start, end, digest in self.extra_keys if start < len(tokens)
        ]
        return SequenceRequest(
            number, tokens, lora_id=self.lora_id, salt=self.salt, extra_keys=extra_keys, retention=retention
        )


def identity_of(request: Any) -> Identity | None:
    """None where blocks of the request cannot be told from others that hold something else."""
    if any(getattr(request, name, None) is not None for name in OPAQUE) or beam_width(request) != 1:
        return None
    spans = multimodal_spans(request)
    if spans is None:
        return None
    salt = getattr(request, "cache_salt_id", None)
    if salt is None:
        salt = getattr(request, "cache_salt", None)
    return Identity(getattr(request, "lora_task_id", None), salt, spans)


def beam_width(request: Any) -> int:
    return int(getattr(getattr(request, "sampling_config", None), "beam_width", 1) or 1)


def multimodal_spans(request: Any) -> tuple[tuple[int, int, bytes], ...] | None:
    """None where there are images without digests of them."""
    hashes: Sequence[Sequence[int]] = getattr(request, "multimodal_hashes", None) or ()
    positions = getattr(request, "multimodal_positions", None) or ()
    lengths = getattr(request, "multimodal_lengths", None) or ()
    if not len(hashes) == len(positions) == len(lengths):
        return None
    if not hashes and getattr(request, "multimodal_embedding", None) is not None:
        return None
    digests = (np.asarray(words, np.int64).astype(np.uint32).tobytes() for words in hashes)
    spans = zip(positions, lengths, digests, strict=True)
    return tuple(sorted((int(start), int(start) + int(length), digest) for start, length, digest in spans))


def tokens_of(request: Any) -> list[int]:
    return list(request.get_tokens(0))
