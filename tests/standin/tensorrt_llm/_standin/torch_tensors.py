"""The real thing: torch on CUDA, with the gather as a few of its kernels over memory that the host owns."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trtllm_kvfix import native


class TorchTensors:
    def __init__(self) -> None:
        self.device = native.open_device(f"cuda:{torch.cuda.current_device()}")  # for the gates

    def pinned(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int32, pin_memory=True)

    def on_device(self, *shape: int) -> Any:
        return torch.empty(shape, dtype=torch.int32, device="cuda")

    def readable_on_device(self, *shape: int) -> Any:
        return self.on_device(*shape)

    def gather_rows(
        self,
        dst: Any,
        table: Any,
        copy_index: Any,
        rows: int,
        scale: Sequence[int],
        v_offset: Sequence[int],
        stream: int,
    ) -> None:
        with torch.cuda.stream(self.external_stream(stream)):
            chosen = _seen_by_kernels(copy_index)[:rows].long()
            pages = _seen_by_kernels(table)[:, chosen, 0]
            for pool in range(dst.shape[0]):
                keys = pages[pool] * scale[pool]
                dst[pool, :rows, 0] = torch.where(pages[pool] == -1, 0, keys)
                dst[pool, :rows, 1] = torch.where(pages[pool] == -1, 0, keys + v_offset[pool])

    def stream(self) -> Any:
        """Ready for `gather_rows`: loading a kernel and a stream's first allocation wait for streams that are held."""
        stream = torch.cuda.Stream()
        table, copy_index, dst = self.pinned(1, 1, 2, 1), self.pinned(1), self.on_device(1, 1, 2, 1)
        self.gather_rows(dst, table, copy_index, 1, [1], [1], stream.cuda_stream)
        stream.synchronize()
        return stream

    def external_stream(self, handle: int) -> Any:
        return torch.cuda.ExternalStream(handle)

    def current_stream(self) -> Any:
        return torch.cuda.current_stream()

    def on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream)

    def event(self) -> Any:
        return torch.cuda.Event()

    def capture(self, enqueue: Callable[[], None]) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # waits for the device first, so nothing may be held
            enqueue()
        graph.replay()  # the first one brings it to the device, which may wait for streams that are held
        return graph

    def close_gate(self, stream: Any) -> int:
        return self.device.close_gate(stream.cuda_stream)

    def open_gate(self, gate: int) -> None:
        self.device.open_gate(gate)


class _Mapped:
    """Pinned memory under the address at which kernels find it, which is the host's own."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<i4",
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


def _seen_by_kernels(tensor: Any) -> Any:
    """Kernels read it when they run; nothing keeps it alive, as nothing does in upstream (hazard H2)."""
    return tensor if tensor.is_cuda else torch.as_tensor(_Mapped(tensor), device="cuda")
