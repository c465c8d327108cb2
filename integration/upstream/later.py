"""Operations on tensors of the late device: what they make has its shape at once, and its values in stream order."""

from typing import Any

import torch
from torch.utils._pytree import tree_map

from integration.upstream import late
from trtllm_kvfix.staging import current_place

# Their shape depends on values, or the host looks at them.
_AT_ONCE = {
    "item",
    "tolist",
    "cpu",
    "numpy",
    "nonzero",
    "unique",
    "__bool__",
    "__int__",
    "__index__",
    "__float__",
    "to",
}


def later(function: Any, args: Any, kwargs: Any) -> Any:
    """Enqueue it, and return what it will fill. NotImplemented where that cannot be."""
    name = getattr(function, "__name__", "")
    if name in _AT_ONCE or kwargs.get("out") is not None:
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        try:
            shape = function(*tree_map(_shape_of, args), **tree_map(_shape_of, kwargs))
        except Exception:
            return NotImplemented
    if not isinstance(shape, torch.Tensor):
        return NotImplemented
    is_in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    made = args[0] if is_in_place else late.on_device(tuple(shape.shape), shape.dtype)
    given, named = tree_map(_kept, args), tree_map(_kept, kwargs)

    def kernel() -> None:
        with torch.inference_mode(), torch._C.DisableTorchFunctionSubclass():
            found = function(*given, **named)
            if not is_in_place:
                late.plain(made).copy_(found)

    late.late().run(current_place().stream, kernel)
    return made


def _shape_of(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value


def _kept(value: Any) -> Any:
    """Memory of the device and pinned memory is read late, pageable memory before the call returns."""
    if isinstance(value, late.DeviceTensor | late.PinnedTensor):
        return late.plain(value)
    return value.clone() if isinstance(value, torch.Tensor) else value
