"""Every planted case in PyTorch needs buffers that stay, and a gate on the current stream."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from watch.gpu.gate import Gate

TORCH_CASES: dict[str, Callable[[bool], bool]] = {}
ITEMS = 16_384


def case(run: Callable[[bool], bool]) -> Callable[[bool], bool]:
    TORCH_CASES[run.__name__] = run
    return run


@cache
def torch_() -> Any:
    import torch  # noqa: PLC0415  only the cases of this file need it

    torch.cuda.init()
    return torch


@cache
def pinned(name: str, items: int = ITEMS, dtype: str = "int32") -> Any:
    """One buffer for all occurrences of a case, as in programs that reuse theirs."""
    torch = torch_()
    return torch.zeros(items, dtype=getattr(torch, dtype), pin_memory=True), name


@cache
def gate() -> Gate:
    driver = ctypes.CDLL("libcuda.so.1")
    torch_().zeros(1, device="cuda")  # makes the context

    def call(name: str, *arguments: Any) -> None:
        result = getattr(driver, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: CUDA error {result}")

    return Gate(call)


def delayed() -> Any:
    """Everything that is enqueued on the current stream from now on waits at the gate."""
    torch = torch_()
    gate().close(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    return torch


def open_if(repaired: bool) -> None:
    if repaired:
        gate().open()


def wait_if(repaired: bool) -> None:
    open_if(repaired)
    if repaired:
        torch_().cuda.synchronize()


def ended(outcome: Any) -> bool:
    gate().open()
    torch_().cuda.synchronize()
    return bool(outcome())
