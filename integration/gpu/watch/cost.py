"""What `watch` costs: `python -m integration.gpu.watch.cost`, once plain and once under it. Prints medians as JSON.

The decode loop makes 20 copies of 4 KiB from pinned buffers, which it rewrites when the step has ended, and 10 ms of
kernels. A guarded copy is the call, the wait and a write into the buffer; an unguarded call is the launch of a kernel.
"""

import ctypes as c
import json
import time
from collections.abc import Callable
from statistics import median

from integration.gpu.watch.driver import Driver, Handle, Size

SIZES = [256, 4096, 65_536, 1 << 20, 16 << 20]
COPIES, STEP_MS, STEPS = 20, 10.0, 100
ROUNDS = 400


def timed_us(call: Callable[[], None], rounds: int = ROUNDS) -> float:
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - begin) / 1000)
    return median(taken)


def copies(cuda: Driver) -> dict[str, float]:
    found = {}
    for bytes_ in SIZES:
        host = cuda.pinned(bytes_)

        def once(host: "c.Array[c.c_ubyte]" = host, bytes_: int = bytes_) -> None:
            cuda("cuMemcpyHtoDAsync_v2", cuda.device, host, Size(bytes_), cuda.stream)
            cuda.synchronize()
            host[0] = 1

        found[f"copy_{bytes_}_us"] = timed_us(once)
        found[f"mprotect_twice_{bytes_}_us"] = protections_us(host)
    return found


def protections_us(host: "c.Array[c.c_ubyte]") -> float:
    """The two calls that a guarded copy cannot do without, on the very memory."""
    protect = c.CDLL(None).mprotect
    first, end = c.addressof(host) // 4096 * 4096, (c.addressof(host) + len(host) + 4095) // 4096 * 4096
    begin, bytes_ = Handle(first), Size(end - first)

    def twice() -> None:
        if protect(begin, bytes_, 1) or protect(begin, bytes_, 3):
            raise RuntimeError("mprotect refuses pinned memory")

    return timed_us(twice)


def launches(cuda: Driver) -> dict[str, float]:
    function = cuda.function("copy_byte")
    to = c.c_ulonglong(cuda.device.value)
    params = (Handle * 2)(c.addressof(to), c.addressof(to))
    ones = [c.c_uint(1)] * 6

    def launch() -> None:
        cuda("cuLaunchKernel", function, *ones, c.c_uint(0), cuda.stream, params, None)

    def hundred() -> None:
        for _ in range(100):
            launch()

    took = timed_us(hundred, 100) / 100
    cuda.synchronize()
    return {"launch_us": took}


def decode_loop() -> dict[str, float]:
    import torch  # noqa: PLC0415

    cycles = int(STEP_MS * 1e-3 * 1.7e9)
    buffers = [torch.zeros(1024, dtype=torch.int32, pin_memory=True) for _ in range(COPIES)]
    devices = [torch.zeros(1024, dtype=torch.int32, device="cuda") for _ in range(COPIES)]

    def step() -> None:
        for buffer, device in zip(buffers, devices, strict=True):
            buffer[0] += 1
            device.copy_(buffer, non_blocking=True)
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()

    for _ in range(5):
        step()
    return {"decode_step_us": timed_us(step, STEPS)}


if __name__ == "__main__":
    driver = Driver(16 << 20)
    print(json.dumps({**copies(driver), **launches(driver), **decode_loop()}))
