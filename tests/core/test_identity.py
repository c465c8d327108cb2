"""Reuse compares content, never hashes; for one seed the hashes are the same in every process and on every machine."""

import os
import random
import subprocess
import sys

import pytest

from trtllm_kvfix.native import BlockManagerConfig, SequenceRequest, block_hashes

from .model.block_hash import hash_block, hash_root, siphash
from .scenes import BLOCK, SEED, begin, hashes, leave_behind, manager, prompt, reusable

IDENTITIES: list[dict[str, object]] = [
    {},
    {"lora_id": 0},
    {"lora_id": 1},
    {"salt": ""},
    {"salt": "a"},
    {"salt": b""},
    {"salt": b"a"},
    {"salt": 0},
    {"salt": 97},
    {"salt": "a", "lora_id": 1},
]


@pytest.mark.parametrize("hash_bits", [128, 64, 4, 1])
def test_equal_hashes_never_merge_different_content(hash_bits: int) -> None:
    rng = random.Random(hash_bits)
    m = manager(primary=4000, hash_bits=hash_bits)
    seen: list[list[int]] = []
    for request_id in range(300):
        tokens = [rng.choice([0, 0, 0, 1, 2]) for _ in range(rng.randint(1, 5 * BLOCK))]
        expected = min(len(tokens) - 1, max((shared_prefix(tokens, other) for other in seen), default=0))
        assert m.analyze_prefix_reuse(SequenceRequest(10**9, tokens)).tokens == expected
        begin(m, request_id, tokens)
        m.remove_sequence(request_id, pin=True)  # what is pinned is not taken over by the next
        seen.append(tokens)
    m.check_invariants()


def shared_prefix(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


@pytest.mark.parametrize("hash_bits", [128, 1])
def test_no_two_identities_share_a_block(hash_bits: int) -> None:
    for mine in IDENTITIES:
        m = manager(primary=8, hash_bits=hash_bits)
        leave_behind(m, 1, prompt(1, 2 * BLOCK), **mine)
        for theirs in IDENTITIES:
            assert (reusable(m, prompt(1, 2 * BLOCK), **theirs) > 0) == (mine is theirs), (mine, theirs)


def test_multimodal_content_is_part_of_the_content() -> None:
    m = manager(primary=8)
    tokens = prompt(1, 2 * BLOCK)
    leave_behind(m, 1, tokens, extra_keys=[(2, 6, b"cat")])
    assert reusable(m, tokens, extra_keys=[(2, 6, b"cat")]) == 2 * BLOCK
    for other in ([], [(2, 6, b"dog")], [(2, 5, b"cat")], [(3, 6, b"cat")], [(2, 6, b"ca"), (6, 7, b"t")]):
        assert reusable(m, tokens, extra_keys=other) < BLOCK, other


def test_a_span_matters_only_to_the_blocks_that_it_touches() -> None:
    m = manager(primary=8)
    tokens = prompt(1, 3 * BLOCK)
    leave_behind(m, 1, tokens, extra_keys=[(5, 6, b"cat")])
    assert reusable(m, tokens) == BLOCK
    assert reusable(m, tokens, extra_keys=[(5, 6, b"cat")]) == 3 * BLOCK


def test_hashes_chain_their_parents_and_cover_full_blocks_only() -> None:
    one = hashes([1, 2, 3, 4, 5, 6, 7, 8, 9])
    other = hashes([0, 2, 3, 4, 5, 6, 7, 8, 9])
    assert len(one) == 2
    assert not set(one) & set(other)
    assert hashes([1, 2, 3, 4, 5, 6]) == one[:1]


@pytest.mark.parametrize(
    ("variant", "message", "expected"),
    [
        ((2, 4, 8), bytes(range(15)), "e545be4961ca29a1"),
        ((2, 4, 16), b"", "a3817f04ba25a8e66df67214c7550293"),
        ((1, 3, 16), b"", "e77ebcb22788a5befd62db6add303001"),
    ],
)
def test_the_model_is_siphash(variant: tuple[int, int, int], message: bytes, expected: str) -> None:
    """The first two as its authors publish them; the rounds of the third are what we use."""
    assert siphash(bytes(range(16)), message, *variant).hex() == expected


@pytest.mark.parametrize("identity", IDENTITIES, ids=str)
def test_hashes_follow_the_documented_formula(identity: dict[str, object]) -> None:
    for size in (1, 2, 3, 4, 5, 64):
        tokens = [(7 * i) ** 3 % (2**31 - 1) for i in range(3 * size)]
        request = SequenceRequest(1, tokens, extra_keys=[(size, size + 1, b"digest")], **identity)  # type: ignore[arg-type]
        salt = identity.get("salt")
        parent = hash_root(SEED, (identity.get("lora_id"), type(salt).__name__, salt))  # type: ignore[arg-type]
        expected = []
        for first in range(0, len(tokens), size):
            extras = ((0, 1, b"digest"),) if first == size else ()
            parent = hash_block(SEED, parent, tokens[first : first + size], extras)
            expected.append(parent)
        config = BlockManagerConfig(tokens_per_block=size, blocks_primary=1, seed=SEED)
        assert block_hashes(request, config) == expected


PINNED_HASHES = [
    0x8783785DD73E422FD855687B20F92993,
    0x9DE8F453F192189ACF1CEFA130B34CB9,
    0xC3F0DE83A22A2E813606435AADD699FE,
    0x61734E752D4CBB344C89973D9A0406FB,
]
PINNED = """
from trtllm_kvfix.native import BlockManagerConfig, SequenceRequest, block_hashes
config = BlockManagerConfig(tokens_per_block=32, blocks_primary=1, seed=2**127 + 1)
plain = block_hashes(SequenceRequest(1, list(range(64))), config)
salted = block_hashes(SequenceRequest(1, list(range(64)), salt="tenant", lora_id=3, extra_keys=[(0, 2, b"x")]), config)
print(*plain, *salted)
"""


def test_hashes_are_the_same_in_every_process_and_version() -> None:
    """Ranks and routers with the seed compute them too: a change of any is a change of the format."""
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ran = subprocess.run(
            [sys.executable, "-c", PINNED], env=environment, capture_output=True, text=True, check=True
        )
        assert [int(word) for word in ran.stdout.split()] == PINNED_HASHES
