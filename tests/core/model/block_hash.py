"""The documented block hash (see cpp/core/block_hash.h) in plain integers, so that two implementations must agree."""

import struct
from collections.abc import Sequence
from functools import lru_cache

from .values import Extras, RootKey

MASK = 2**64 - 1
INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def rotated(x: int, bits: int) -> int:
    return (x << bits | x >> 64 - bits) & MASK


def half_round(a: int, b: int, c: int, d: int, s: int, t: int) -> tuple[int, int, int, int]:
    a, c = a + b & MASK, c + d & MASK
    return rotated(a, 32), rotated(b, s) ^ a, c, rotated(d, t) ^ c


def rounds(v: Sequence[int], count: int) -> tuple[int, ...]:
    v0, v1, v2, v3 = v
    for _ in range(count):
        v0, v1, v2, v3 = half_round(v0, v1, v2, v3, 13, 16)
        v2, v1, v0, v3 = half_round(v2, v1, v0, v3, 17, 21)
    return v0, v1, v2, v3


def siphash(key: bytes, message: bytes, compression: int = 1, finalization: int = 3, size: int = 16) -> bytes:
    """SipHash of any variant, with 8 or 16 bytes of output."""
    keys = struct.unpack("<QQ", key) * 2
    v: Sequence[int] = [word ^ k for word, k in zip(INITIAL, keys, strict=True)]
    v = (v[0], v[1] ^ (0xEE if size == 16 else 0), v[2], v[3])
    whole = len(message) - len(message) % 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", message[:whole] + last):
        v0, v1, v2, v3 = rounds((v[0], v[1], v[2], v[3] ^ word), compression)
        v = (v0 ^ word, v1, v2, v3)
    v = rounds((v[0], v[1], v[2] ^ (0xEE if size == 16 else 0xFF), v[3]), finalization)
    out = struct.pack("<Q", v[0] ^ v[1] ^ v[2] ^ v[3])
    if size == 16:
        v = rounds((v[0], v[1] ^ 0xDD, v[2], v[3]), finalization)
        out += struct.pack("<Q", v[0] ^ v[1] ^ v[2] ^ v[3])
    return out


@lru_cache(maxsize=64)
def key_of(seed: int) -> bytes:
    return siphash(seed.to_bytes(16, "little"), b"block hashes")


@lru_cache(maxsize=10**5)
def hash_message(seed: int, message: bytes) -> int:
    return int.from_bytes(siphash(key_of(seed), message), "little")


def hash_root(seed: int, root: RootKey) -> int:
    lora_id, _, salt = root
    identity = b"" if lora_id is None else b"L" + struct.pack("<q", lora_id)
    if isinstance(salt, str):
        identity += b"S" + salt.encode()
    elif isinstance(salt, bytes):
        identity += b"B" + salt
    elif isinstance(salt, int):
        identity += b"I" + struct.pack("<q", salt)
    return hash_message(seed, bytes(8) + identity)


def hash_block(seed: int, parent: int, tokens: Sequence[int], extras: Extras) -> int:
    words = struct.pack(f"<{len(tokens)}i", *tokens)
    raw = b"".join(struct.pack("<qqQ", a, b, len(content)) + content for a, b, content in extras)
    header = struct.pack("<Q", len(tokens)) + parent.to_bytes(16, "little")
    return hash_message(seed, header + words + bytes(-len(words) % 8) + raw)
