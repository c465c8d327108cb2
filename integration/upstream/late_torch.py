"""Gives tensors on 'cuda' and pinned ones to the simulated device, whoever makes them."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from integration.upstream.late import DeviceTensor, PinnedTensor, enqueue_copy, on_device, pinned, plain


class LateTorch(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """While it is entered, torch makes them there."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "pin_memory":
            return _moved(function, args, kwargs, pinned)
        wanted = kwargs.pop("pin_memory", False)
        place = kwargs.get("device")
        like = name.endswith("_like") and isinstance(args[0], DeviceTensor | PinnedTensor)
        on_cuda = (place is not None and "cuda" in str(place)) or (like and place is None and _is_device(args[0]))
        if wanted or on_cuda or like:
            kwargs["device"] = "cpu"
            plain_args = tuple(plain(each) if isinstance(each, DeviceTensor | PinnedTensor) else each for each in args)
            made = function(*plain_args, **kwargs)
            return _adopted(made, on_device if on_cuda else pinned) if wanted or on_cuda else made
        if name in ("cuda", "to") and args and isinstance(args[0], torch.Tensor):
            return self._sent(function, args, kwargs)
        return function(*args, **kwargs)

    def _sent(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        to_cuda = function.__name__ == "cuda" or any("cuda" in str(each) for each in (*args[1:], kwargs.get("device")))
        if not to_cuda:
            return function(*args, **kwargs)
        sent = on_device(tuple(args[0].shape), args[0].dtype)
        enqueue_copy(sent, args[0], bool(kwargs.get("non_blocking", False)))
        return sent


def _is_device(tensor: Any) -> bool:
    return isinstance(tensor, DeviceTensor)


def _adopted(made: Any, make: Callable[..., Any]) -> Any:
    tensor = make(tuple(made.shape), made.dtype)
    if made.numel():
        plain(tensor).copy_(plain(made))
    return tensor


def _moved(function: Any, args: Any, kwargs: dict[str, Any], make: Callable[..., Any]) -> Any:
    del function, kwargs
    return args[0] if isinstance(args[0], PinnedTensor) else _adopted(args[0], make)
