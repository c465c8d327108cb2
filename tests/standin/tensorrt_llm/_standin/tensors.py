"""The tensors, streams and events that the stand-in works with, on whatever device was chosen.

Upstream uses torch, whose statements the stand-in writes (`dst[p, :n].copy_(host[p, :n], non_blocking=True)`). The
tests have no torch, so tensors over memory of our own stand in for it; STANDIN_DEVICE=torch takes torch's.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Tensors(Protocol):
    """Operations that are no method of a tensor in torch. Whatever takes no stream works on the thread's current
    one."""

    def pinned(self, *shape: int) -> Any:
        """torch.zeros(shape, dtype=torch.int32, pin_memory=True)"""

    def on_device(self, *shape: int) -> Any:
        """torch.empty(shape, dtype=torch.int32, device="cuda")"""

    def readable_on_device(self, *shape: int) -> Any:
        """The same, for what `gather_rows` reads on the device."""

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
        """A kernel: reads `table` and `copy_index` where they are when it runs, and keeps neither alive."""

    def stream(self) -> Any:
        """torch.cuda.Stream()"""

    def external_stream(self, handle: int) -> Any:
        """torch.cuda.ExternalStream(handle)"""

    def current_stream(self) -> Any: ...
    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """torch.cuda.stream(stream)"""

    def event(self) -> Any:
        """torch.cuda.Event()"""

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """torch.cuda.CUDAGraph(), with the copies that `enqueue` makes between memory that stays."""

    def close_gate(self, stream: Any) -> int:
        """Holds what is enqueued on the stream from now on, until `open_gate`."""

    def open_gate(self, gate: int) -> None: ...


_chosen: Tensors | None = None
_lock = threading.Lock()


def tensors() -> Tensors:
    """Opened at the first use, and one for the process, as the CUDA device is."""
    global _chosen  # noqa: PLW0603
    with _lock:
        if _chosen is None:
            _chosen = _opened(os.environ.get("STANDIN_DEVICE", "cpu"))
        return _chosen


def _opened(device: str) -> Tensors:
    if device == "torch":
        from .torch_tensors import TorchTensors  # noqa: PLC0415

        return TorchTensors()
    from .native_tensors import NativeTensors  # noqa: PLC0415  `import tensorrt_llm` loads no native code

    return NativeTensors(device)
