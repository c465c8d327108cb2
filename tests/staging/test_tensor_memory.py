"""A tensor class with DLPack's table of C functions is asked by one call of it, and by nothing else."""

import ctypes
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from trtllm_kvfix import native
from trtllm_kvfix.native import OffsetStager, PoolCopies
from trtllm_kvfix.overlay.fuse import Fuse

Numbers = npt.NDArray[Any]

ROWS, BLOCKS = 4, 8
SHAPE = (1, ROWS, 2, BLOCKS)
CPU, CUDA, PINNED = 1, 2, 3  # DLDeviceType
CODES = {"i": 0, "u": 1, "f": 2}
STREAM_ON_GPU = 4321


class Told(ctypes.Structure):
    """DLTensor."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Told))
CurrentStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI, version 1."""

    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("unused", ctypes.c_void_p * 3),
        ("describe", Describe),
        ("current_stream", CurrentStream),
    ]


class Tensor:
    """Nothing but what an exchange can tell of it."""

    def __init__(self, array: Numbers, device_type: int = CPU, byte_offset: int = 0) -> None:
        self.array, self.device_type, self.byte_offset = array, device_type, byte_offset
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(each // array.itemsize for each in array.strides))


asked: list[object] = []


def tell(tensor: Any, out: Any) -> int:
    asked.append(tensor)
    array = tensor.array
    out[0] = Told(
        array.ctypes.data - tensor.byte_offset,
        tensor.device_type,
        1,
        array.ndim,
        CODES[array.dtype.kind],
        8 * array.itemsize,
        1,
        tensor.shape,
        tensor.strides,
        tensor.byte_offset,
    )
    return 0


describe = Describe(tell)
# A callback of ctypes cannot raise. This function of Python's returns -1 and raises: no tensor of ours is a number.
refuses = ctypes.cast(ctypes.pythonapi.PyLong_AsLong, Describe)


def tell_stream(device_type: int, device: int, out: Any) -> int:
    assert (device_type, device) == (CUDA, 1)
    out[0] = STREAM_ON_GPU
    return 0


current_stream = CurrentStream(tell_stream)
KEPT: list[Any] = []  # of the tables, for as long as the process lives
NAME = b"dlpack_exchange_api"
capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def table(describe: Any = describe, *, major: int = 1, older: Exchange | None = None) -> Exchange:
    made = Exchange(
        major,
        0,
        None if older is None else ctypes.addressof(older),
        (ctypes.c_void_p * 3)(),
        describe,
        current_stream,
    )
    KEPT.append(made)
    return made


def tensors_with(exchange: Exchange, name: bytes = NAME) -> Any:
    """A class of its own, since classes are remembered."""
    told = {"__dlpack_c_exchange_api__": capsule(ctypes.addressof(exchange), name, None)}
    return type("ExchangedTensor", (Tensor,), told)


class Bench:
    def __init__(self) -> None:
        self.device = native.open_device("cpu")
        self.stream = self.device.create_stream()
        self.table = self.device.pinned(SHAPE, "int32").array
        self.table[...] = np.arange(self.table.size).reshape(SHAPE)
        self.target = self.device.empty(SHAPE, "int32")
        self.stager = OffsetStager(layout="v1", num_pools=1, rows_max=ROWS, blocks_max=BLOCKS, device=self.device)

    def rows_that_arrive(self, rows: Any, count: int) -> list[int]:
        self.stager.ship(self.target, self.table, rows, stream=self.stream)
        arrived = self.device.download(self.target, self.stream)[0, :count, 0, 0]
        return [int(each) // (2 * BLOCKS) for each in arrived]


@pytest.fixture
def bench() -> Iterator[Bench]:
    asked.clear()
    made = Bench()
    yield made
    made.stager.close()


@pytest.mark.parametrize("device_type", [CPU, PINNED])
@pytest.mark.parametrize("byte_offset", [0, 256])
def test_one_call_tells_the_rows(bench: Bench, device_type: int, byte_offset: int) -> None:
    kind = tensors_with(table())
    for rows in ([3, 1], [2], []):
        index = kind(np.array(rows, np.int32), device_type, byte_offset)
        assert bench.rows_that_arrive(index, len(rows)) == rows
    assert len(asked) == 3


def test_a_table_of_another_version_leads_to_an_older_one(bench: Bench) -> None:
    kind = tensors_with(table(refuses, major=2, older=table()))
    assert bench.rows_that_arrive(kind(np.array([2, 0], np.int32)), 2) == [2, 0]


@pytest.mark.parametrize(
    "exchange",
    [
        pytest.param({"major": 2}, id="a newer version alone"),
        pytest.param({"describe": Describe(0)}, id="without the function"),
    ],
)
def test_a_table_that_we_cannot_use_is_not_used(bench: Bench, exchange: dict[str, Any]) -> None:
    kind = tensors_with(table(**exchange))
    with pytest.raises(TypeError, match="rows"):
        bench.rows_that_arrive(kind(np.array([1], np.int32)), 1)


def test_a_capsule_of_another_name_is_not_opened(bench: Bench) -> None:
    kind = tensors_with(table(), b"dltensor")
    with pytest.raises(TypeError, match="rows"):
        bench.rows_that_arrive(kind(np.array([1], np.int32)), 1)
    assert asked == []


def test_a_derived_class_may_answer_otherwise_so_its_table_is_its_own(bench: Bench) -> None:
    derived = type("Derived", (tensors_with(table()),), {})
    with pytest.raises(TypeError, match="rows"):
        bench.rows_that_arrive(derived(np.array([1], np.int32)), 1)
    assert asked == []


@pytest.mark.parametrize(
    ("array", "device_type"),
    [
        pytest.param(np.array([1, 2], np.int64), CPU, id="int64"),
        pytest.param(np.array([1, 2], np.uint32), CPU, id="uint32"),
        pytest.param(np.array([[1, 2]], np.int32), CPU, id="two dimensions"),
        pytest.param(np.array([1, 9, 2, 9], np.int32)[::2], CPU, id="with gaps"),
        pytest.param(np.array([1, 2], np.int32), CUDA, id="on a GPU"),
    ],
)
def test_rows_that_cannot_be_read_in_one_piece_are_not_read_so(bench: Bench, array: Numbers, device_type: int) -> None:
    kind = tensors_with(table())
    with pytest.raises(TypeError, match="rows"):
        bench.rows_that_arrive(kind(array, device_type), len(array))


def test_what_it_raises_is_passed_on(bench: Bench) -> None:
    kind = tensors_with(table(refuses))
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        bench.rows_that_arrive(kind(np.array([1], np.int32)), 1)


def test_a_copy_of_v1_is_known_by_the_memory_that_the_exchange_tells(bench: Bench) -> None:
    kind = tensors_with(table())
    copies = Copies(bench.target, bench.table, bench.stager, lambda: bench.stream, Fuse("a-fix"), lends=False)
    table_rows = bench.table[0]
    sources = {
        "its own rows": table_rows[:2],
        "others": table_rows[1:3],
        "fewer": table_rows[:1],
        "every other one": table_rows[::2],
        "another shape": table_rows[:2].reshape(2, 2 * BLOCKS),
        "five dimensions": table_rows[:2].reshape(2, 2, 2, 2, 2),
        "floats": table_rows[:2].view(np.float32),
    }
    for what, source in sources.items():
        is_own = what == "its own rows"
        copies.begin()
        tensor = kind(source)
        copies[0, :2].copy_(tensor, non_blocking=True)
        assert (copies.others.pop() if copies.others else None) is (None if is_own else tensor)


class Copies(PoolCopies):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.others: list[Any] = []

    def otherwise(self, _index: Any, source: Any, _non_blocking: bool) -> None:
        self.others.append(source)
