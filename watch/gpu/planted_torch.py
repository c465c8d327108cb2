"""Planted races in PyTorch and CuPy, each after a class of defects that projects have reported: own code, after the
description. A case takes whether it is repaired, runs one occurrence, and answers whether the outcome was right."""

import ctypes
from functools import cache
from typing import Any

from watch.gpu.torch_rounds import (
    ITEMS,
    TORCH_CASES,
    case,
    delayed,
    ended,
    open_if,
    pinned,
    torch_,
    wait_if,
)

__all__ = ["POSSIBLE", "TORCH_CASES"]
POSSIBLE = {"zero_copy_kernel"}
BLOCKS = 64


@case
def block_offsets_rewritten(repaired: bool) -> bool:
    """H1: the next step writes its table of block offsets into the staging buffer of the last (TensorRT-LLM)."""
    host, _ = pinned("offsets")
    host.fill_(1)
    torch = delayed()
    device = torch.empty(ITEMS, dtype=torch.int32, device="cuda")
    device.copy_(host, non_blocking=True)
    wait_if(repaired)
    host.fill_(7)
    return ended(lambda: int(device.sum()) == ITEMS)


@case
def one_row_rewritten(repaired: bool) -> bool:
    """H2: only the row of one request is rewritten, through NumPy."""
    host, _ = pinned("rows")
    host.fill_(1)
    torch = delayed()
    device = host.to("cuda", non_blocking=True)
    wait_if(repaired)
    host.numpy()[5000:5064] = 9
    assert torch is not None
    return ended(lambda: int(device.max()) == 1)


@case
def sampling_inputs_rewritten(repaired: bool) -> bool:
    """H7: several small pinned tensors that share pages, refilled for the next batch."""
    room, _ = pinned("small", 4096)
    tables = [room[at * 64 : (at + 1) * 64] for at in range(8)]
    for table in tables:
        table.fill_(1)
    torch = delayed()
    devices = [table.to("cuda", non_blocking=True) for table in tables[:4]]
    tables[6].fill_(3)  # a neighbour, and legal
    wait_if(repaired)
    tables[2][10] = 5
    assert torch is not None
    return ended(lambda: all(int(device.sum()) == 64 for device in devices))


@case
def tokens_read_early(repaired: bool) -> bool:
    """Sampled tokens are copied to the host without blocking and turned into a list at once (vLLM, SGLang)."""
    host, _ = pinned("tokens")
    host.zero_()
    torch = delayed()
    device = torch.full((ITEMS,), 4, dtype=torch.int32, device="cuda")
    host.copy_(device, non_blocking=True)
    wait_if(repaired)
    tokens = host[:16].tolist()
    return ended(lambda: tokens == [4] * 16)


@case
def logits_summed_early(repaired: bool) -> bool:
    """The same with arithmetic, which workers without Python do."""
    host, _ = pinned("logits", 1 << 20)
    host.zero_()
    torch = delayed()
    device = torch.ones(1 << 20, dtype=torch.int32, device="cuda")
    host.copy_(device, non_blocking=True)
    wait_if(repaired)
    total = int(host.sum())
    return ended(lambda: total == 1 << 20)


@case
def offloaded_block_read_early(repaired: bool) -> bool:
    """A block of the KV cache is offloaded and checksummed before the copy has ended (LMCache, KVBM)."""
    host, _ = pinned("pool", BLOCKS * 4096, "uint8")
    host.zero_()
    torch = torch_()
    pool = torch.full((BLOCKS * 4096,), 3, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()  # before the gate: the first one waits for the device
    delayed()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host[4096:8192].copy_(pool[4096:8192], non_blocking=True)
    wait_if(repaired)
    digest = int(host[4096:8192].to(torch.int64).sum())
    return ended(lambda: digest == 3 * 4096)


@case
def loaded_block_reused(repaired: bool) -> bool:
    """A host block is given to another request while its load onto the device is under way (LMCache)."""
    host, _ = pinned("reused", BLOCKS * 4096, "uint8")
    host.fill_(3)
    torch = delayed()
    pool = torch.zeros(BLOCKS * 4096, dtype=torch.uint8, device="cuda")
    for block in range(4):
        span = slice(block * 4096, (block + 1) * 4096)
        pool[span].copy_(host[span], non_blocking=True)
    wait_if(repaired)
    host[3 * 4096 : 4 * 4096] = 9
    return ended(lambda: int(pool[: 4 * 4096].max()) == 3)


@case
def event_of_the_wrong_copy(repaired: bool) -> bool:
    """Two buffers in turn, but the event that is waited for belongs to the other one (double buffering)."""
    host, _ = pinned("double", 2 * ITEMS)
    host.fill_(1)
    torch = torch_()
    device = torch.empty(2 * ITEMS, dtype=torch.int32, device="cuda")
    events = [torch.cuda.Event() for _ in range(2)]
    for half in range(2):
        if half == 1:
            delayed()
        device[half * ITEMS : (half + 1) * ITEMS].copy_(host[half * ITEMS : (half + 1) * ITEMS], non_blocking=True)
        events[half].record()
    open_if(repaired)
    events[1 if repaired else 0].synchronize()
    host[ITEMS:].fill_(7)
    return ended(lambda: int(device.max()) == 1)


@case
def queried_and_ignored(repaired: bool) -> bool:
    """The event is asked for, and its answer is not looked at."""
    host, _ = pinned("queried")
    host.fill_(1)
    torch = delayed()
    device = host.to("cuda", non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    open_if(repaired)
    event.synchronize() if repaired else event.query()
    host.fill_(2)
    return ended(lambda: int(device.max()) == 1)


@case
def waits_for_the_wrong_stream(repaired: bool) -> bool:
    host, _ = pinned("stream")
    host.fill_(1)
    torch = torch_()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    device = torch.empty(ITEMS, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        delayed()
        device.copy_(host, non_blocking=True)
    open_if(repaired)
    (side if repaired else other).synchronize()
    host.fill_(2)
    return ended(lambda: int(device.max()) == 1)


@case
def gradients_offloaded(repaired: bool) -> bool:
    """The optimizer on the host reads gradients that are still on their way (DeepSpeed, Megatron)."""
    host, _ = pinned("gradients", 1 << 18, "float32")
    host.zero_()
    torch = delayed()
    gradient = torch.ones(1 << 18, device="cuda")
    host.copy_(gradient, non_blocking=True)
    wait_if(repaired)
    weights = torch.zeros(1 << 18)
    weights.add_(host, alpha=-1)
    return ended(lambda: float(weights.sum()) == -float(1 << 18))


@case
def graph_input_rewritten(repaired: bool) -> bool:
    """A CUDA graph copies its inputs from a pinned buffer, which is refilled right behind the replay (H9, PyTorch)."""
    torch = torch_()
    host, _ = pinned("graph")
    graph, device = recorded(host)
    host.fill_(1)
    torch.cuda.synchronize()
    delayed()
    graph.replay()
    wait_if(repaired)
    host[777] = 5
    return ended(lambda: int(device.max()) == 1)


@cache
def recorded(host: Any) -> Any:
    torch = torch_()
    device = torch.zeros(ITEMS, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        device.copy_(host, non_blocking=True)
    return graph, device


@case
def strided_rows(repaired: bool) -> bool:
    """Columns of a pinned matrix: a copy of many rows (cuDF, llama.cpp's 2D copies)."""
    torch = torch_()
    host, _ = pinned("matrix", 128 * 128)
    host.fill_(1)
    device = torch.zeros(128 * 32, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    runtime = ctypes.CDLL("libcudart.so.13")
    stream = torch.cuda.current_stream().cuda_stream
    delayed()
    arguments = (device.data_ptr(), 128, host.data_ptr(), 512, 128, 128, 1, stream)
    kinds = [ctypes.c_void_p, ctypes.c_size_t] * 2 + [ctypes.c_size_t] * 2 + [ctypes.c_int, ctypes.c_void_p]
    assert runtime.cudaMemcpy2DAsync(*(kind(value) for kind, value in zip(kinds, arguments, strict=True))) == 0
    host.view(128, 128)[:, 64:] = 8  # beside the columns that are copied, and legal
    wait_if(repaired)
    host.view(128, 128)[100, 10] = 9
    return ended(lambda: int(device.max()) == 1)


@case
def zero_copy_kernel(repaired: bool) -> bool:
    """A kernel reads pinned memory itself (CuPy)."""
    import cupy  # noqa: PLC0415

    torch = torch_()
    host, _ = pinned("mapped")
    host.fill_(1)
    device = torch.zeros(ITEMS, dtype=torch.int32, device="cuda")
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        # Before the gate: the first launch compiles and loads the kernel, which waits for the device.
        copier()((ITEMS // 256,), (256,), (device.data_ptr(), device.data_ptr()))
        torch.cuda.synchronize()
        delayed()
        copier()((ITEMS // 256,), (256,), (device.data_ptr(), host.data_ptr()))
    wait_if(repaired)
    host[12_000] = 9
    return ended(lambda: int(device.max()) == 1)


@cache
def copier() -> Any:
    import cupy  # noqa: PLC0415

    return cupy.RawKernel(
        'extern "C" __global__ void take(int* to, const int* from) {'
        " int i = blockIdx.x * blockDim.x + threadIdx.x; to[i] = from[i]; }",
        "take",
    )


@case
def cupy_array_set(repaired: bool) -> bool:
    """CuPy's own copy out of pinned memory, rewritten behind it."""
    import cupy  # noqa: PLC0415
    import numpy  # noqa: PLC0415

    room = numpy.frombuffer(cupy_room(), numpy.int32, ITEMS)
    room[:] = 1
    torch = delayed()
    device = cupy.zeros(ITEMS, cupy.int32)
    device.set(room, stream=cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream))
    wait_if(repaired)
    room[100] = 9
    return ended(lambda: int(device.max()) == 1)


@cache
def cupy_room() -> Any:
    import cupy  # noqa: PLC0415

    return cupy.cuda.alloc_pinned_memory(ITEMS * 4)


@case
def allocator_reuse(repaired: bool) -> bool:
    """A pinned tensor made by from_blob-like views: the storage's owner rewrites what a view's copy still reads."""
    host, _ = pinned("owner", 8 * ITEMS)
    host.fill_(1)
    delayed()
    view = host.view(8, ITEMS)[3]
    device = view.to("cuda", non_blocking=True)
    wait_if(repaired)
    host[3 * ITEMS + 5 : 3 * ITEMS + 6].zero_()
    return ended(lambda: int(device.sum()) == ITEMS)
