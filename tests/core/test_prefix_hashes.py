"""Hashes of a prompt one at a time: those that block_hashes() gives at once, in whatever order they are asked for."""

import pytest

from trtllm_kvfix.native import BlockManagerConfig, PrefixHashes, SequenceRequest, block_hashes

SPANS = [(3, 9, b"an image")]


@pytest.mark.parametrize("hash_bits", [128, 5])
@pytest.mark.parametrize("order", [range(5), range(4, -1, -1), (3, 1, 4, 3, 0)])
def test_each_is_what_all_of_them_say(hash_bits: int, order: range | tuple[int, ...]) -> None:
    config = BlockManagerConfig(tokens_per_block=4, blocks_primary=1, hash_bits=hash_bits, seed=7)
    request = SequenceRequest(1, list(range(23)), lora_id=2, salt="a tenant", extra_keys=SPANS)
    hashes = PrefixHashes(request, config)
    everything = block_hashes(request, config)
    assert [hashes[block] for block in order] == [everything[block] for block in order]
    assert len(hashes) == len(everything) == 5


@pytest.mark.parametrize("block", [2, 2**32 - 1])
def test_a_block_that_is_not_full_has_none(block: int) -> None:
    hashes = PrefixHashes(SequenceRequest(1, list(range(11))), BlockManagerConfig(tokens_per_block=4, blocks_primary=1))
    with pytest.raises(IndexError, match=f"request 1 has 2 full blocks, and no block {block}"):
        hashes[block]
