"""An attacker knows the functions that place blocks in the indexes, but not the seed that keys them.

As in cpp/core/siphash.h, index_hash.h and reuse_tree.cc. With a seed of his own choice he makes contents that collide.
"""

import struct

MASK = 2**64 - 1
INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash_1_3_128(key: tuple[int, int], message: bytes) -> tuple[int, int]:
    low, high = key
    state = [word ^ k for word, k in zip(INITIAL, (low, high, low, high), strict=True)]
    state[1] ^= 0xEE
    whole = len(message) - len(message) % 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", message[:whole] + last):
        state[3] ^= word
        _round(state)
        state[0] ^= word
    state[2] ^= 0xEE
    first = _finished(state)
    state[1] ^= 0xDD
    return first, _finished(state)


def key_for(seed: int, purpose: bytes) -> tuple[int, int]:
    return siphash_1_3_128((seed & MASK, seed >> 64), purpose)


def cancelling_word(seed: int) -> int:
    """Two tokens that make the first product of the tokens' hash zero, whatever it is multiplied with."""
    first, _ = siphash_1_3_128(key_for(seed, b"tokens in the index"), bytes(8))
    return -first & MASK


def rank_seed(seed: int) -> int:
    return key_for(seed, b"ranks of children")[0]


def rank_of_child(block: int, ranks: int) -> int:
    x = (block ^ ranks) * 0x9E3779B97F4A7C15 & MASK
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & MASK
    return x >> 32


def _round(v: list[int]) -> None:
    v[0] = v[0] + v[1] & MASK
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] = v[2] + v[3] & MASK
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = v[0] + v[3] & MASK
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = v[2] + v[1] & MASK
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)


def _finished(v: list[int]) -> int:
    for _ in range(3):
        _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _rotated(x: int, bits: int) -> int:
    return (x << bits | x >> 64 - bits) & MASK
