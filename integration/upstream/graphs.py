"""CUDA graphs of the late device: what the model reads while one is captured is read anew at each replay."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from integration.upstream import late
from trtllm_kvfix.staging import current_place


class Graph:
    """`torch.cuda.CUDAGraph`, as far as copies go. It holds addresses, as a GPU's does, and no tensor."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.copies: list[tuple[int, int, int]] = []
        self._handle: int | None = None

    def replay(self) -> None:
        place = current_place()
        if self._handle is None:
            self._handle = place.device.capture_copies(*map(list, zip(*self.copies, strict=True)))
        place.device.launch_graph(self._handle, place.stream)
        replayed.append(self)

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def reset(self) -> None:
        pass


_capturing: list[Graph] = []
replayed: list[Graph] = []  # in order, each as often as it was


@contextmanager
def capture(graph: Graph, *_: Any, **__: Any) -> Iterator[None]:
    """`torch.cuda.graph`."""
    _capturing.append(graph)
    try:
        yield
    finally:
        _capturing.remove(graph)


def is_capturing() -> bool:
    return bool(_capturing)


def read(target: Any, source: Any) -> None:
    """A kernel of the model reads this: it is enqueued, or put into the graph that is being captured."""
    to, of = late.plain(target), late.plain(source)
    if _capturing:
        _capturing[-1].copies.append((to.data_ptr(), of.data_ptr(), to.numel() * to.element_size()))
    else:
        late.enqueue_copy(target, source, non_blocking=True)
