"""The double of the caching allocator: who is not recorded is not waited for."""

from trtllm_kvfix.hazards.h2_block_offsets_v2.device import CachingHostAllocator
from trtllm_kvfix.native import open_device


def test_a_block_comes_back_at_once_when_no_event_was_recorded() -> None:
    allocator = CachingHostAllocator(open_device("cpu"))
    first = allocator.take((4,), "int32")
    allocator.give_back(first)
    assert allocator.take((4,), "int32") is first


def test_a_block_in_use_or_of_another_kind_is_not_handed_out() -> None:
    allocator = CachingHostAllocator(open_device("cpu"))
    first = allocator.take((4,), "int32")
    assert allocator.take((4,), "int32") is not first
    allocator.give_back(first)
    assert allocator.take((2, 2), "int32") is not first
    assert allocator.take((4,), "uint32") is not first


def test_a_recorded_block_comes_back_when_its_stream_has_passed() -> None:
    device = open_device("cpu")
    stream = device.create_stream()
    allocator = CachingHostAllocator(device)
    gate = device.close_gate(stream)
    first = allocator.take((4,), "int32")
    allocator.record(first, stream)
    allocator.give_back(first)
    second = allocator.take((4,), "int32")
    device.open_gate(gate)
    device.synchronize(stream)
    assert second is not first
    assert allocator.take((4,), "int32") is first
    allocator.close()
    device.destroy_stream(stream)
