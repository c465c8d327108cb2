"""The double of the caching allocator: nobody waits for a kernel."""

from trtllm_kvfix.hazards.h2_block_offsets_v2.device import CachingHostAllocator
from trtllm_kvfix.native import open_device


def test_a_block_comes_back_at_once() -> None:
    allocator = CachingHostAllocator(open_device("cpu"))
    first = allocator.take((4,))
    allocator.give_back(first)
    assert allocator.take((4,)) is first


def test_a_block_in_use_or_of_another_kind_is_not_handed_out() -> None:
    allocator = CachingHostAllocator(open_device("cpu"))
    first = allocator.take((4,))
    assert allocator.take((4,)) is not first
    allocator.give_back(first)
    assert allocator.take((2, 2)) is not first
