"""Integers come in every form that Python has, are read exactly, and what is refused has changed nothing."""

import array
import ctypes
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray

import numpy as np
import pytest

from trtllm_kvfix.native import (
    SequenceRequest,
    UnknownRequest,
)

from .scenes import begin, manager, prompt

VALUES = [5, 0, 2**31 - 1, 7]


class DlpackOnly:
    """A tensor of another library shows this much of itself: no buffer, no sequence."""

    def __init__(self, values: object, dtype: str = "int64") -> None:
        self.values = np.asarray(values, dtype=dtype)

    def __dlpack__(self, **options: object) -> object:
        return self.values.__dlpack__(**options)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[object, int]:
        return self.values.__dlpack_device__()


class Liar(np.ndarray):
    """An array that is not quite numpy's own, and says a type that it has not."""

    @property
    def dtype(self) -> np.dtype[np.int64]:
        return np.dtype(np.int64)


class RefusesFirst(DlpackOnly):
    """An exporter that is content with a question about versions only, as numpy is with read-only arrays."""

    def __dlpack__(self, **options: object) -> object:
        if "max_version" not in options:
            raise BufferError("ask for a version")
        return super().__dlpack__(**options)


class NegativeView(DlpackOnly):
    """Its memory holds the values with the opposite sign, as that of torch's negative views does."""

    def is_neg(self) -> bool:
        return True


class Fails(DlpackOnly):
    """An exporter's own error reaches the caller."""

    def __init__(self, error: BaseException) -> None:
        super().__init__([1])
        self.error = error

    def __dlpack__(self, **options: object) -> object:
        raise self.error


class Index:
    """An integer that runs code of its own when it is read."""

    def __init__(self, value: int, then: Callable[[], object]) -> None:
        self.value, self.then = value, then

    def __index__(self) -> int:
        self.then()
        return self.value


FORMS: dict[str, Callable[[list[int]], object]] = {
    "list": list,
    "tuple": tuple,
    "list of numpy ints": lambda v: [np.int32(x) for x in v],
    "numpy int32": lambda v: np.array(v, dtype=np.int32),
    "numpy int64": lambda v: np.array(v, dtype=np.int64),
    "numpy uint32": lambda v: np.array(v, dtype=np.uint32),
    "numpy uint64": lambda v: np.array(v, dtype=np.uint64),
    "numpy strided": lambda v: np.repeat(np.array(v, dtype=np.int32), 3)[::3],
    "numpy reversed": lambda v: np.array(v[::-1], dtype=np.int64)[::-1],
    "numpy column": lambda v: np.column_stack([v, v])[:, 1],
    "numpy derived": lambda v: np.array(v, dtype=np.int32).view(Liar),
    "numpy read-only": lambda v: np.frombuffer(np.array(v, dtype=np.int32).tobytes(), dtype=np.int32),
    "array.array": lambda v: array.array("i", v),
    "array.array long": lambda v: array.array("q", v),
    "memoryview": lambda v: memoryview(array.array("i", v)),
    "memoryview strided": lambda v: memoryview(array.array("i", [x for x in v for _ in range(2)]))[::2],
    "ctypes array": lambda v: (ctypes.c_int32 * len(v))(*v),
    "ctypes array long": lambda v: (ctypes.c_uint64 * len(v))(*v),
    "RawArray": lambda v: RawArray("i", v),
    "dlpack": DlpackOnly,
    "dlpack versioned": RefusesFirst,
    "dlpack int32": lambda v: DlpackOnly(v, "int32"),
    "dlpack strided": lambda v: DlpackOnly(np.repeat(v, 2)[::2]),
}

REFUSED: dict[str, tuple[type[Exception], object]] = {
    "floats": (TypeError, [1.0]),
    "bools": (TypeError, [True]),
    "strings": (TypeError, ["1"]),
    "None": (TypeError, None),
    "a number": (TypeError, 1),
    "a string": (TypeError, "12"),
    "bytes": (TypeError, b"12"),
    "a set": (TypeError, {1}),
    "numpy float": (TypeError, np.array([1.0])),
    "numpy bool": (TypeError, np.array([True])),
    "numpy int8": (TypeError, np.array([1], dtype=np.int8)),
    "numpy uint8": (TypeError, np.array([1], dtype=np.uint8)),
    "numpy big-endian": (TypeError, np.array([1], dtype=">i4")),
    "numpy 2-D": (TypeError, np.ones((1, 1), dtype=np.int32)),
    "numpy 0-D": (TypeError, np.array(1)),
    "ctypes float": (TypeError, (ctypes.c_float * 1)(1.0)),
    "ctypes 2-D": (TypeError, ((ctypes.c_int32 * 1) * 1)()),
    "ctypes number": (TypeError, ctypes.c_int32(1)),
    "dlpack negative view": (TypeError, NegativeView([-1])),
    "dlpack refuses": (TypeError, Fails(BufferError("no"))),
    "dlpack float": (TypeError, DlpackOnly([1.0], "float32")),
    "dlpack 2-D": (TypeError, DlpackOnly([[1]])),
    "too large": (ValueError, [2**31]),
    "far too large": (ValueError, [2**80]),
    "too large to print": (ValueError, [10**5000]),
    "too large to print, negative": (ValueError, [-(10**5000)]),
    "negative": (ValueError, [-1]),
    "numpy too large": (ValueError, np.array([2**31])),
    "numpy uint64 too large": (ValueError, np.array([2**64 - 1], dtype=np.uint64)),
    "numpy negative": (ValueError, np.array([-1])),
    "dlpack negative": (ValueError, DlpackOnly([-1])),
    "array negative": (ValueError, array.array("i", [-1])),
    "nothing": (ValueError, []),
    "numpy nothing": (ValueError, np.array([], dtype=np.int32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_read_exactly(form: str) -> None:
    request = SequenceRequest(1, FORMS[form](VALUES))
    assert request.tokens == VALUES
    assert request.num_tokens == len(VALUES)


@pytest.mark.parametrize("form", FORMS)
def test_every_other_list_of_numbers_is_read_the_same_way(form: str) -> None:
    as_form = FORMS[form]
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2))
    begin(m, 2, prompt(2, 2))
    m.add_tokens(as_form([2, 1]), as_form([1, 2]), as_form([70, 80, 81]), computed=as_form([2, 0]))
    m.remove_sequence(1, tokens=as_form([*prompt(1, 2), 80, 81]), computed=4)
    assert m.analyze_prefix_reuse(SequenceRequest(9, [*prompt(1, 2), 80, 81, 5])).tokens == 4
    ids = m.get_batch_cache_block_ids(as_form([2]))[0][0]
    m.pin_blocks_by_id(as_form(ids))
    m.unpin_blocks_by_id(as_form(ids))
    table = np.zeros((1, 1, 2, 4), dtype=np.int32)
    m.copy_batch_block_offsets(table, as_form([2]), 1, 0)
    assert table[0, 0, 1, 0] == table[0, 0, 0, 0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_tokens_is_refused_by_name(name: str) -> None:
    error, value = REFUSED[name]
    with pytest.raises(error, match="request 41, tokens"):
        SequenceRequest(41, value)


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("nothing", "numpy nothing", "None")])
def test_what_is_not_numbers_changes_nothing(name: str) -> None:
    error, value = REFUSED[name]
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2))
    digest = m.digest()
    calls: list[Callable[[], object]] = [
        lambda: m.add_token(1, 1, value),
        lambda: m.remove_sequence(1, tokens=value),
    ]
    if error is TypeError:
        calls += [
            lambda: m.add_tokens(value, [1]),
            lambda: m.add_tokens([1], value),
            lambda: m.add_tokens([1], [1], computed=value),
            lambda: m.pin_blocks_by_id(value),
            lambda: m.unpin_blocks_by_id(value),
            lambda: m.get_batch_cache_block_ids(value),
        ]
    for call in calls:
        with pytest.raises(error):
            call()
        assert m.digest() == digest


def test_a_request_copies_its_tokens_when_it_is_made() -> None:
    numbers = np.array(VALUES, dtype=np.int32)
    request = SequenceRequest(1, numbers)
    numbers[:] = 0
    assert request.tokens == VALUES
    with pytest.raises(AttributeError):
        request.request_id = 2  # type: ignore[misc]


def test_what_one_array_holds_says_nothing_about_the_next() -> None:
    for _ in range(2):
        for dtype in ("int32", "int64", "uint32", "uint64", "longlong"):
            assert SequenceRequest(1, np.array(VALUES, dtype=dtype)).tokens == VALUES
        for dtype in (">i4", ">i8", "int16", "float32", "float64"):
            with pytest.raises(TypeError):
                SequenceRequest(1, np.zeros(1, dtype=dtype))
        with pytest.raises(ValueError, match="4294967295"):
            SequenceRequest(1, np.array([2**32 - 1], dtype=np.uint32))


@pytest.mark.parametrize("change", ["clear", "grow", "shrink"])
def test_a_list_that_changes_while_it_is_read_is_refused(change: str) -> None:
    values: list[object] = [1, 2, 3, 4]
    then: dict[str, Callable[[], object]] = {
        "clear": values.clear,
        "grow": lambda: values.extend([9] * 10_000),
        "shrink": values.pop,
    }
    values[1] = Index(2, then[change])
    with pytest.raises(ValueError, match="changed"):
        SequenceRequest(1, values)


def test_a_list_whose_items_are_replaced_is_read_as_it_is_at_each_item() -> None:
    values: list[object] = [1, 2, 3, 4]
    values[1] = Index(2, lambda: values.__setitem__(3, 40))
    assert SequenceRequest(1, values).tokens == [1, 2, 3, 40]


def test_an_error_inside_an_argument_is_the_callers_error() -> None:
    def refuse() -> None:
        raise LookupError("mine")

    m = manager(primary=8)
    begin(m, 1, prompt(1, 2))
    digest = m.digest()
    with pytest.raises(LookupError, match="mine"):
        m.add_tokens([Index(1, refuse)], [1])
    assert m.digest() == digest


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LookupError("mine"), MemoryError()], ids=repr)
def test_an_error_inside_an_exporter_is_the_callers_error(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        SequenceRequest(1, Fails(error))
    assert caught.value is error


def test_an_argument_may_call_the_manager_while_it_is_read() -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2))
    m.add_tokens([Index(1, lambda: m.add_token(1))], [1])
    m.rewind_kv_cache(1, 2)


def test_ids_use_all_64_bits() -> None:
    m = manager(primary=8)
    begin(m, 2**64 - 1, prompt(1, 2))
    m.add_tokens([2**64 - 1], [1])
    assert m.get_request_stats(2**64 - 1).tokens_new == 2
    with pytest.raises(UnknownRequest, match=str(2**63)):
        m.add_tokens(np.array([2**63], dtype=np.uint64), [1])


def test_ints_of_one_digit_of_pythons_and_of_more_are_read_alike() -> None:
    values = [0, 1, 2**15 - 1, 2**15, 2**30 - 1, 2**30, 2**31 - 1]
    assert SequenceRequest(1, values).tokens == SequenceRequest(1, tuple(values)).tokens == values
    with pytest.raises(ValueError, match=f"value {2**31} at position 1 is out of range: 0 to {2**31 - 1}$"):
        SequenceRequest(1, [0, 2**31])
    with pytest.raises(ValueError, match="token 1 is -1"):
        SequenceRequest(1, [0, -1])


def test_a_request_that_was_never_made_is_named() -> None:
    m = manager(primary=2)
    digest = m.digest()
    with pytest.raises(TypeError, match="requests: a SequenceRequest whose __init__"):
        m.add_sequence_batch([SequenceRequest(1, [1]), SequenceRequest.__new__(SequenceRequest)])
    assert m.digest() == digest
