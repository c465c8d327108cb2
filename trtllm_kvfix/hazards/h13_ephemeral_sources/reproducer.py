"""H13: pageable memory is read after a copy has returned that was asked to read it during the call.

Shows:     cuMemcpyBatchAsync with CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL has to be done with its source when it
           returns. The host rewrites a pageable source then, while the stream is busy, and the device gets what was
           written later. For six sizes, with CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE and without.
Control:   the same copies, and the host waits for the stream before it rewrites the source.
Needs:     torch, a GPU, a driver of CUDA 12.8 or later; not TensorRT-LLM. Takes ten seconds.
"""

import ctypes
import sys
from typing import Any

import torch

from trtllm_kvfix.hazards.h13_ephemeral_sources.device import copy_read_during_call, open_driver

SIZES_KIB = (4, 64, 96, 128, 256, 1024)
MEANT, LATER = 1, 2  # each byte of the source
CYCLES = 500_000_000  # about a quarter of a second, for which the stream is busy


def is_late(driver: Any, size_kib: int, *, overlap: bool, wait: bool) -> bool:
    words = size_kib * 256
    stream = torch.cuda.Stream()
    source = (ctypes.c_int32 * words)()  # pageable, as a vector is
    arrived = torch.zeros(words, dtype=torch.int32, device="cuda")
    seen = torch.zeros(words, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()
    ctypes.memset(source, MEANT, 4 * words)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        to, origin = arrived.data_ptr(), ctypes.addressof(source)
        copy_read_during_call(driver, to, origin, 4 * words, stream.cuda_stream, overlap)
        if wait:
            stream.synchronize()
        ctypes.memset(source, LATER, 4 * words)
        seen.copy_(arrived, non_blocking=True)
    stream.synchronize()
    return any(word != int.from_bytes(4 * bytes([MEANT])) for word in seen.tolist())


def late_sizes(driver: Any, *, overlap: bool, wait: bool) -> list[str]:
    return [f"{size} KiB" for size in SIZES_KIB if is_late(driver, size, overlap=overlap, wait=wait)]


opened = open_driver()
late_sizes(opened, overlap=False, wait=True)  # first uses load things, which waits for the device
control = late_sizes(opened, overlap=True, wait=True) + late_sizes(opened, overlap=False, wait=True)
hinted, plain = (late_sizes(opened, overlap=overlap, wait=False) for overlap in (True, False))
print(f"read late with PREFER_OVERLAP_WITH_COMPUTE: {', '.join(hinted) or 'no size'}")
print(f"read late without: {', '.join(plain) or 'no size'}; with a wait: {', '.join(control) or 'no size'}")
sys.exit(2 if control else int(bool(hinted or plain)))
