"""The part of torch that the reproducers use, over the stand-in's tensors and the simulated device.

`cuda._sleep` holds its stream until the host waits for that stream, or for one behind it. On a GPU a sleep of half a
second comes to the same: whatever the host does meanwhile takes less.
"""

from types import TracebackType
from typing import Any

from tensorrt_llm._standin.native_tensor import DeviceTensor
from tensorrt_llm._standin.native_tensors import NativeEvent, NativeGraph, NativeStream, NativeTensors
from tensorrt_llm._standin.tensors import tensors

from trtllm_kvfix.staging import current_place

int32 = "int32"
_tensors: NativeTensors = tensors()
_streams: "dict[int, _Stream]" = {}


def zeros(shape: int | tuple[int, ...], dtype: str, device: str = "cpu", pin_memory: bool = False) -> Any:
    assert dtype == int32 and pin_memory is (device == "cpu"), "int32, pinned or on the device"
    sizes = (shape,) if isinstance(shape, int) else shape
    if pin_memory:
        return _tensors.pinned(*sizes)
    made = Filled.fresh(_tensors._home, sizes)
    stream = NativeStream(_tensors.device, _tensors.device.create_stream())
    _tensors.device.fill_words(made.data_ptr(), made.numel(), 0, stream.cuda_stream)
    stream.synchronize()
    return made


def tensor(values: list[int], dtype: str) -> Any:
    assert dtype == int32
    made = _tensors.pinned(len(values))
    made.numpy()[:] = values
    return made


class Filled(DeviceTensor):  # type: ignore[misc]  # imported under another name
    def fill_(self, value: int) -> "Filled":
        _tensors.device.fill_words(self.data_ptr(), self.numel(), value, current_place().stream)
        return self


class _Stream(NativeStream):  # type: ignore[misc]  # imported under another name
    def __init__(self) -> None:
        super().__init__(_tensors.device, _tensors.device.create_stream())
        self._gates: list[int] = []
        self._behind: list[_Stream] = []
        _streams[self.cuda_stream] = self

    def hold(self) -> None:
        self._gates.append(_tensors.device.close_gate(self.cuda_stream))

    def let_go(self) -> None:
        while self._gates:
            _tensors.open_gate(self._gates.pop())
        for other in self._behind:
            other.let_go()

    def wait_stream(self, other: NativeStream) -> None:
        super().wait_stream(other)
        self._behind.append(_streams[other.cuda_stream])

    def synchronize(self) -> None:
        self.let_go()
        super().synchronize()


class _Event(NativeEvent):  # type: ignore[misc]  # imported under another name
    def __init__(self) -> None:
        super().__init__(_tensors.device)

    def record(self, stream: NativeStream | None = None) -> None:
        self._stream = _streams[current_place().stream if stream is None else stream.cuda_stream]
        super().record(stream)

    def synchronize(self) -> None:
        self._stream.let_go()
        super().synchronize()


class _Graph:
    """The work that `torch.cuda.graph` has captured."""

    made: NativeGraph

    def replay(self) -> None:
        self.made.replay()


class _Capture:
    def __init__(self, graph: _Graph, stream: _Stream) -> None:
        assert stream.cuda_stream == current_place().stream
        self._graph = graph
        self._capturing = _tensors._home.capturing()

    def __enter__(self) -> None:
        self._copies = self._capturing.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._capturing.__exit__(kind, error, at)
        self._graph.made = NativeGraph(_tensors.device, self._copies)


class cuda:  # noqa: N801  a module of torch's
    Stream, Event, CUDAGraph, graph = _Stream, _Event, _Graph, _Capture

    @staticmethod
    def stream(chosen: NativeStream) -> Any:
        return _tensors.on(chosen)

    @staticmethod
    def _sleep(cycles: int) -> None:
        assert cycles > 0
        _streams[current_place().stream].hold()

    @staticmethod
    def synchronize() -> None:
        for stream in [*_streams.values()]:
            stream.synchronize()
