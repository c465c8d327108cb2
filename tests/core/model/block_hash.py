"""The documented block hash (see cpp/core/block_hash.h) in plain integers, so that two implementations must agree."""

import struct
from collections.abc import Sequence

from .values import Extras, RootKey

MASK = 2**64 - 1
K1, K2, K3, K4, K5 = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xABC98388FB8FAC03, 0x8BB84B93962EACC9, 0x2D358DCCAA6C78A5


def fold(a: int, b: int) -> int:
    product = (a & MASK) * (b & MASK)
    return (product & MASK) ^ (product >> 64)


def mix(x: int) -> int:
    return fold((x & MASK) ^ K3, K4) ^ ((x & MASK) >> 32)


def digest(raw: bytes, n: int) -> int:
    padded = raw + bytes(-len(raw) % 16)
    pairs = struct.iter_unpack("<QQ", padded)
    total = n * K5
    for i, (even, odd) in enumerate(pairs):
        total += fold(even ^ ((K1 + i * K3) & MASK), odd ^ ((K2 + i * K4) & MASK))
    return total & MASK


def hash_root(root: RootKey) -> int:
    lora_id, _, salt = root
    identity = b"" if lora_id is None else b"L" + struct.pack("<q", lora_id)
    if isinstance(salt, str):
        identity += b"S" + salt.encode()
    elif isinstance(salt, bytes):
        identity += b"B" + salt
    elif isinstance(salt, int):
        identity += b"I" + struct.pack("<q", salt)
    return mix(digest(identity, len(identity)))


def hash_block(parent: int, tokens: Sequence[int], extras: Extras) -> int:
    words = struct.pack(f"<{len(tokens)}i", *tokens)
    total = fold(parent ^ K1, digest(words, len(tokens)) ^ K2) + parent
    if extras:
        raw = b"".join(struct.pack("<qqQ", a, b, len(content)) + content for a, b, content in extras)
        total += digest(raw, len(raw))
    return mix(total)
