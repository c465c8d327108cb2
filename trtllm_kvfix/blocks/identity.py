"""Identity of a prefix: its tokens, LoRA adapter and salt, and digests of images and the like."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.native import Retention, SequenceRequest

# The blocks of a prompt with one of these depend on more than tokens, and nobody has given a digest of the rest.
OPAQUE = ("prompt_embedding_table", "encoder_tokens", "encoder_input_features")
SALTS = ("cache_salt_id", "cache_salt")
DIGEST_BYTES_MAX = 256  # kDigestBytesMax in cpp/core/request.h: a longer one is refused there


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
    """None where blocks of the request look like others that hold something else.

    What cannot be read may be anything, so it is never taken for "none".
    """
    if any(getattr(request, name, None) is not None for name in OPAQUE) or beam_width(request) != 1:
        return None
    spans = multimodal_spans(request)
    salts = [getattr(request, name) for name in SALTS if hasattr(request, name)]
    if spans is None or not salts or not hasattr(request, "lora_task_id"):
        return None
    return Identity(request.lora_task_id, next((salt for salt in salts if salt is not None), None), spans)


def beam_width(request: Any) -> int | None:
    """None where it cannot be read."""
    config = getattr(request, "sampling_config", None)
    return getattr(config, "beam_width", None)


def multimodal_spans(request: Any) -> tuple[tuple[int, int, bytes], ...] | None:
    """None where there may be images without digests of them.

    The data of images is on the Python request alone. The bound one, which V1 hands to connectors, says nothing of it.
    """
    hashes: Sequence[Sequence[int]] = getattr(request, "multimodal_hashes", None) or ()
    positions = getattr(request, "multimodal_positions", None) or ()
    lengths = getattr(request, "multimodal_lengths", None) or ()
    if not len(hashes) == len(positions) == len(lengths):
        return None
    if not hashes:
        return None if may_have_images(request) else ()
    digests = [np.asarray(words, np.int64).astype(np.uint32).tobytes() for words in hashes]
    if any(len(digest) > DIGEST_BYTES_MAX for digest in digests):
        return None
    spans = zip(positions, lengths, digests, strict=True)
    return tuple(sorted((int(start), int(start) + int(length), digest) for start, length, digest in spans))


def may_have_images(request: Any) -> bool:
    if getattr(request, "multimodal_embedding", None) is not None:
        return True
    return not hasattr(request, "py_multimodal_data") or request.py_multimodal_data not in (None, {})


def tokens_of(request: Any) -> list[int]:
    return list(request.get_tokens(0))
