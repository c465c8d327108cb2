"""Names of blocks in a store that others share: what has the same name holds the same, on every node and for ever.

A block's key is a SHA-256 over its parent's and all that its contents follow from. The root stands for the weights, the
layout of a block and how ranks share it.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.blocks.identity import Identity

FORMAT = "trtllm-kvfix block 2"
KEY_BYTES = hashlib.sha256().digest_size
Spans: TypeAlias = tuple[tuple[int, int, bytes], ...]  # images: their first token, the one behind, their digest


def root_of(parts: Mapping[str, str]) -> bytes:
    """Return the root of all names. Every part counts, and none can be taken for another."""
    spelled = [FORMAT, *(text for name in sorted(parts) for text in (name, parts[name]))]
    return _digest(*(text.encode() for text in spelled))


def object_name(key: bytes, rank: int, ranks: int) -> str:
    """The name of the object that holds what one rank has of a block."""
    return f"kvfix/{key.hex()}/{rank}.{ranks}"


def start_of(root: bytes, identity: Identity) -> bytes:
    """What the names of all blocks of a sequence follow from."""
    salt = identity.salt.encode() if isinstance(identity.salt, str) else identity.salt
    kind = type(identity.salt).__name__  # 1 and "1" are two salts
    spelled = salt if isinstance(salt, bytes) else str(salt).encode()
    return _digest(root, str(identity.lora_id).encode(), kind.encode(), spelled)


def array_of(tokens: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
    """As names see tokens, on every machine."""
    return np.asarray(tokens, "<i4")


def keys_behind(
    parent: bytes, first: int, tokens: NDArray[np.int32], tokens_per_block: int, spans: Spans
) -> list[bytes]:
    """The keys of whole blocks: the first of them has this number, and follows the parent."""
    step, keys, content = 4 * tokens_per_block, list[bytes](), tokens.tobytes()
    plain = _lengths((bytes(KEY_BYTES), b"", bytes(step)))  # of every block that no image reaches into
    for at in range(0, len(content), step):
        extras = _extras(spans, (first + len(keys)) * tokens_per_block, tokens_per_block) if spans else b""
        block = content[at : at + step]
        parent = _digest(parent, extras, block) if extras else hashlib.sha256(plain + parent + block).digest()
        keys.append(parent)
    return keys


def _extras(spans: Spans, begin: int, tokens_per_block: int) -> bytes:
    """The extras of a block: images that reach into it, and where."""
    end = begin + tokens_per_block
    inside = [span for span in spans if span[0] < end and begin < span[1]]
    return b"".join(_digest(str(start).encode(), str(stop).encode(), digest) for start, stop, digest in inside)


class Given:
    """The keys of a prompt's blocks, one behind the other, once somebody else has made them. Until then none."""

    keys = b""


class KeyChain:
    """The keys of a sequence that grows. Each is made once: when it is asked for, unless it has been given by then."""

    def __init__(self, start: bytes, spans: Spans, tokens_per_block: int, given: Given | None = None) -> None:
        self._start, self._spans, self._tokens_per_block = start, spans, tokens_per_block
        self._given = given or Given()
        self._keys = bytearray()  # one behind the other: a long prompt has thousands
        self._tokens: list[int] = []  # of the blocks that have no key yet
        self._begin = 0  # the first of those blocks

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens of further whole blocks."""
        self._take_given()
        end = self._begin + len(tokens) // self._tokens_per_block
        if not self._tokens and end <= self._named:
            self._begin = end
            return
        self._tokens.extend(tokens)
        self._drop_named()

    def keys(self, first: int, end: int) -> tuple[bytes, ...]:
        self._take_given()
        if end > self._named and self._tokens:
            parent, tokens = bytes(self._keys[-KEY_BYTES:]) or self._start, array_of(self._tokens)
            self._keys += b"".join(keys_behind(parent, self._begin, tokens, self._tokens_per_block, self._spans))
            self._drop_named()
        places = range(KEY_BYTES * first, KEY_BYTES * min(end, self._named), KEY_BYTES)
        return tuple([bytes(self._keys[at : at + KEY_BYTES]) for at in places])

    @property
    def _named(self) -> int:
        return len(self._keys) // KEY_BYTES

    def _take_given(self) -> None:
        given = self._given.keys
        if len(given) > len(self._keys):
            self._keys[:] = given
        self._drop_named()

    def _drop_named(self) -> None:
        named = min(self._named - self._begin, len(self._tokens) // self._tokens_per_block)
        del self._tokens[: named * self._tokens_per_block]
        self._begin += named


def _digest(*parts: bytes) -> bytes:
    """Hash the parts behind their lengths, so that none can be taken for another."""
    return hashlib.sha256(_lengths(parts) + b"".join(parts)).digest()


def _lengths(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") for part in parts)


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
