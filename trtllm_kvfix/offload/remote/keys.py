"""Names of blocks in a store that others share: what has the same name holds the same, on every node and for ever.

A block's key is a SHA-256 over its parent's and all that its contents follow from. The root stands for the weights, the
layout of a block and how ranks share it.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.blocks.identity import Identity

FORMAT = "trtllm-kvfix block 2"
KEY_BYTES = hashlib.sha256().digest_size


def root_of(parts: Mapping[str, str]) -> bytes:
    """Return the root of all names. Every part counts, and none can be taken for another."""
    spelled = [FORMAT, *(text for name in sorted(parts) for text in (name, parts[name]))]
    return _digest(*(text.encode() for text in spelled))


def object_name(key: bytes, rank: int, ranks: int) -> str:
    """The name of the object that holds what one rank has of a block."""
    return f"kvfix/{key.hex()}/{rank}.{ranks}"


class KeyChain:
    """The keys of a sequence that grows: each call costs what is new."""

    def __init__(self, root: bytes, identity: Identity, tokens_per_block: int) -> None:
        salt = identity.salt.encode() if isinstance(identity.salt, str) else identity.salt
        kind = type(identity.salt).__name__  # 1 and "1" are two salts
        spelled = salt if isinstance(salt, bytes) else str(salt).encode()
        self._last = _digest(root, str(identity.lora_id).encode(), kind.encode(), spelled)
        self._spans = identity.extra_keys
        self._tokens_per_block = tokens_per_block
        self.keys: list[bytes] = []

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Add the keys of further whole blocks."""
        step = 4 * self._tokens_per_block
        content = np.asarray(tokens, "<i4").tobytes()
        for at in range(0, len(content), step):
            self._last = _digest(self._last, self._extras(), content[at : at + step])
            self.keys.append(self._last)

    def _extras(self) -> bytes:
        """The extras of the next block: images that reach into it, and where."""
        if not self._spans:
            return b""
        begin = len(self.keys) * self._tokens_per_block
        end = begin + self._tokens_per_block
        inside = [span for span in self._spans if span[0] < end and begin < span[1]]
        return b"".join(_digest(str(start).encode(), str(stop).encode(), digest) for start, stop, digest in inside)


def _digest(*parts: bytes) -> bytes:
    """Hash the parts, each behind its length, so that none can be taken for another."""
    lengths = b"".join(len(part).to_bytes(8, "little") for part in parts)
    return hashlib.sha256(lengths + b"".join(parts)).digest()


NAME_BYTES = 16


class Era:
    """The era of an engine's weights, which is a part of the names of its blocks.

    The names of a checkpoint's weights are those that all nodes share. Weights that came later have no name that two
    engines could agree on: nothing says whether another one was given the same. So each change begins an era under a
    name that nobody else has. What the engine puts from then on, it finds again, and nobody else does, until it starts
    anew.

    The scheduler side has it. Nothing of it reaches other ranks but the names of blocks.
    """

    def __init__(self) -> None:
        self._name = ""  # that of the checkpoint

    def begin_next(self) -> None:
        self._name = secrets.token_hex(NAME_BYTES)

    def root(self, checkpoint: bytes) -> bytes:
        """The beginning of the names of blocks. Those of the checkpoint's weights begin with `checkpoint`."""
        return root_of({"checkpoint": checkpoint.hex(), "era": self._name}) if self._name else checkpoint
