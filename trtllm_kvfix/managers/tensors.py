"""Tensors as upstream's Python takes them: torch's, or numpy's if torch is not installed."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix.managers.layout import Element
from trtllm_kvfix.native import Device, DeviceArray


@cache
def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415  only where tensors are
    except ImportError:
        return None
    return torch


def on_cpu(table: npt.NDArray[Any]) -> Any:
    """A small table in host memory."""
    torch = _torch()
    return table if torch is None else torch.from_numpy(table)


def view(device: Device, memory: DeviceArray, shape: tuple[int, ...], element: Element) -> Any:
    """Device memory as a tensor, which keeps it alive."""
    return _host_view(memory, shape, element) if device.simulated else _cuda_view(memory, shape, element)


def _host_view(memory: DeviceArray, shape: tuple[int, ...], element: Element) -> Any:
    raw: Any = (ctypes.c_uint8 * memory.nbytes).from_address(memory.address)
    raw.kept = memory
    torch = _torch()
    if torch is None:
        return np.frombuffer(raw, dtype=element.numpy_name).reshape(shape)
    return torch.frombuffer(raw, dtype=torch.uint8).view(getattr(torch, element.torch_name)).view(shape)


class _CudaBytes:
    """Names device memory the way torch and others read it."""

    def __init__(self, memory: DeviceArray) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }


def _cuda_view(memory: DeviceArray, shape: tuple[int, ...], element: Element) -> Any:
    torch = _torch()
    flat = torch.as_tensor(_CudaBytes(memory), device="cuda")
    return flat.view(getattr(torch, element.torch_name)).view(shape)
