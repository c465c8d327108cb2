"""The device tensor that attention reads: where it is, and how it is laid out."""

from dataclasses import dataclass
from typing import Any

from trtllm_kvfix import native
from trtllm_kvfix.staging.place import current_place, stream_of_torch


@dataclass(frozen=True, slots=True)
class Destination:
    address: int
    pool_stride: int  # elements
    rows: int
    blocks: int
    tensor: Any = None  # a torch tensor, or None for memory of our own
    device_index: int = 0  # of the tensor

    @staticmethod
    def of(dst: Any, device: native.Device) -> "Destination":
        """Raise ValueError unless `dst` is int32 (pools, rows, 2, blocks) on `device`, rows contiguous."""
        if isinstance(dst, native.DeviceArray):
            return _of_device_array(dst)
        if not hasattr(dst, "data_ptr"):
            raise TypeError(f"dst is {type(dst).__name__}; expected a CUDA tensor or a native DeviceArray")
        return _of_tensor(dst, device)

    def is_at_its_place(self) -> bool:
        """Our own memory always is; a tensor may have been given other memory."""
        return self.tensor is None or bool(self.tensor.data_ptr() == self.address)

    def current_stream(self) -> int:
        return current_place().stream if self.tensor is None else stream_of_torch()(self.device_index)


def _of_device_array(dst: native.DeviceArray) -> Destination:
    _check_shape(tuple(dst.shape), dst.dtype)
    _, rows, planes, blocks = dst.shape
    return Destination(dst.address, rows * planes * blocks, rows, blocks)


def _of_tensor(dst: Any, device: native.Device) -> Destination:
    _check_shape(tuple(dst.shape), str(dst.dtype).removeprefix("torch."))
    if not dst.is_cuda or device.simulated:
        raise ValueError(
            f"dst is on {dst.device}, the stager on {device.name}; make the stager for the tensor's device"
        )
    if device.name.split(" ")[0] != f"cuda:{dst.device.index}":
        raise ValueError(
            f"dst is on {dst.device}, the stager on {device.name}; make the stager for the tensor's device"
        )
    pool_stride, row_stride, plane_stride, block_stride = dst.stride()
    _, rows, _, blocks = dst.shape
    if (row_stride, plane_stride, block_stride) != (2 * blocks, blocks, 1):
        raise ValueError(f"dst has strides {tuple(dst.stride())} for shape {tuple(dst.shape)}; rows must be contiguous")
    return Destination(dst.data_ptr(), pool_stride, rows, blocks, dst, dst.device.index)


def _check_shape(shape: tuple[int, ...], dtype: str) -> None:
    if dtype != "int32" or len(shape) != 4 or shape[2] != 2:
        raise ValueError(f"dst is {dtype} of shape {shape}; expected int32 (pools, rows, 2, blocks)")
