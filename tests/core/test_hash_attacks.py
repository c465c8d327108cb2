"""Blocks built to have another's hash. Hashes were once a sum of unkeyed terms, in which such blocks need no search."""

import struct

from trtllm_kvfix.native import SequenceRequest, block_hashes

from .scenes import BLOCK, begin, hashes, manager, prompt

MASK = 2**64 - 1
ODD, EVEN_STEP, ODD_STEP = 0xD1B54A32D192ED03, 0xABC98388FB8FAC03, 0x8BB84B93962EACC9
EVEN = 0x9E3779B97F4A7C15
TOKENS = 32  # per block: eight terms of two words each
NEGATIVE = 1 << 31 | 1 << 63  # bits that no words of tokens have


def fold(a: int, b: int) -> int:
    product = a * b
    return product & MASK ^ product >> 64


def keys(pair: int) -> tuple[int, int]:
    return (EVEN + pair * EVEN_STEP) & MASK, (ODD + pair * ODD_STEP) & MASK


def old_sum(words: list[int]) -> int:
    pairs = zip(words[::2], words[1::2], strict=True)
    return sum(fold(even ^ keys(i)[0], odd ^ keys(i)[1]) for i, (even, odd) in enumerate(pairs)) & MASK


def words_of(tokens: list[int]) -> list[int]:
    return list(struct.unpack(f"<{len(tokens) // 2}Q", struct.pack(f"<{len(tokens)}i", *tokens)))


def tokens_of(words: list[int]) -> list[int]:
    return list(struct.unpack(f"<{2 * len(words)}i", struct.pack(f"<{len(words)}Q", *words)))


def forged(victim: list[int]) -> list[int]:
    """Other tokens with the victim's sum: where a first factor is one, the term is its second word up to known bits."""
    free = [pair for pair in range(TOKENS // 4) if not (keys(pair)[0] ^ 1) & NEGATIVE]
    words = [7] * (TOKENS // 2)
    for pair in free:
        words[2 * pair] = keys(pair)[0] ^ 1
    first, *others, last = free
    for guess in range(4096):
        for pair in (first, *others):
            words[2 * pair + 1] = guess * 0x9E3779B97F4A7C15 * (pair + 3) & MASK & ~NEGATIVE
        words[2 * last + 1] = keys(last)[1]  # this term is zero
        words[2 * last + 1] ^= old_sum(words_of(victim)) - old_sum(words) & MASK
        if not words[2 * last + 1] & NEGATIVE:
            return tokens_of(words)
    raise AssertionError("the attack is none")


def test_a_block_built_to_have_a_victims_hash_has_another() -> None:
    victim = prompt(1, TOKENS)
    attack = forged(victim)
    assert attack != victim and min(attack) >= 0
    assert old_sum(words_of(attack)) == old_sum(words_of(victim)), "the attack is none"
    m = manager(primary=8, tokens_per_block=TOKENS, events_max=1)
    [theirs] = block_hashes(SequenceRequest(1, victim), m.config)
    begin(m, 1, attack)
    [stored] = m.get_latest_events()
    assert stored.block_hash != theirs


def salt_with(word: int) -> bytes:
    """The pair whose first factor is zero makes nothing of its second word. The identity begins with a letter."""
    free = struct.pack("<QQ", keys(1)[0], word)
    return bytes(15) + free


def test_salts_that_differ_where_the_sum_does_not_see_it_have_different_hashes() -> None:
    one, other = salt_with(1), salt_with(2)
    assert old_sum(list(struct.unpack("<4Q", b"B" + one))) == old_sum(list(struct.unpack("<4Q", b"B" + other)))
    assert hashes(prompt(1, BLOCK), salt=one) != hashes(prompt(1, BLOCK), salt=other)
