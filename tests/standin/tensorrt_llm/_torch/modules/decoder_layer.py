"""A model as far as a connector hooks into it: layers, with what is called before and after each."""

from collections.abc import Callable, Iterator
from typing import Any


class DecoderLayer:
    """Has torch's two kinds of hooks, and calls them as torch does."""

    def __init__(self, layer_idx: int) -> None:
        self.layer_idx = layer_idx
        self._before: list[Callable[..., None]] = []
        self._behind: list[Callable[..., None]] = []

    def register_forward_pre_hook(self, hook: Callable[..., None]) -> None:
        self._before.append(hook)

    def register_forward_hook(self, hook: Callable[..., None]) -> None:
        self._behind.append(hook)

    def __call__(self, attend: Callable[[int], None]) -> None:
        for hook in self._before:
            hook(self, (attend,))
        attend(self.layer_idx)
        for hook in self._behind:
            hook(self, (attend,), None)


class Model:
    def __init__(self, num_layers: int) -> None:
        self._layers = [DecoderLayer(index) for index in range(num_layers)]

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        yield "", self
        for layer in self._layers:
            yield f"layers.{layer.layer_idx}", layer

    def forward(self, attend: Callable[[int], None]) -> None:
        for layer in self._layers:
            layer(attend)
