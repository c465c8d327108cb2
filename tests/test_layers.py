"""Every import and include is one that the table of layers in docs/design.md allows."""

from collections.abc import Iterator

import pytest

from tests.layers import HOSTRACE, PACKAGE, ROOT, Table, cpp_complaints, goes_down, python_complaints, table

TABLE = table((ROOT / "docs" / "design.md").read_text())
LAYERED_CPP = ("process", "core", "device", "flight", "kernels", "staging", "lanes", "replay", "canary", "bindings")


def complaints() -> Iterator[str]:
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        yield from python_complaints(TABLE, file.relative_to(ROOT / PACKAGE).as_posix(), file.read_text())
    for file in sorted((ROOT / HOSTRACE).rglob("*.py")):
        yield from python_complaints(TABLE, file.relative_to(ROOT).as_posix(), file.read_text())
    for folder in (*(f"cpp/{name}" for name in LAYERED_CPP), "watch/cpp/hostrace"):
        for file in sorted((ROOT / folder).iterdir()):
            yield from cpp_complaints(TABLE, file.relative_to(ROOT).as_posix(), file.read_text())


def test_nothing_knows_what_its_row_does_not_allow() -> None:
    assert list(complaints()) == []


def test_every_layer_has_a_row_and_knows_only_rows_above() -> None:
    packages = {path.name.removesuffix(".py") for path in (ROOT / PACKAGE).iterdir() if path.suffix == ".py"}
    packages |= {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert packages - set(TABLE) == {"__init__", "__main__"}
    assert set(TABLE) - packages == {*(f"cpp/{name}" for name in LAYERED_CPP), "watch/cpp", HOSTRACE}
    assert list(goes_down(TABLE)) == []


SMALL: Table = {
    HOSTRACE: frozenset(),
    "low": frozenset(),
    "high": frozenset({"low"}),
    "cpp/core": frozenset(),
    "cpp/device": frozenset(),
}


@pytest.mark.parametrize(
    ("file", "text", "count"),
    [
        ("high/x.py", "from trtllm_kvfix.low import a", 0),
        ("low/x.py", "from trtllm_kvfix.high import a", 1),
        ("low/x.py", "def f():\n    from trtllm_kvfix import high", 1),
        ("low/x.py", "if TYPE_CHECKING:\n    from trtllm_kvfix.high import a", 0),
        ("low.py", "import trtllm_kvfix.high.deep", 1),
        ("new/x.py", "", 1),
        ("low/x.py", "import trtllm_kvfix", 0),
        ("low/x.py", "def f():\n    from hostrace.command import watch", 1),
        (f"{HOSTRACE}/hostrace/x.py", "from hostrace.races import read", 0),
        (f"{HOSTRACE}/hostrace/x.py", "from trtllm_kvfix import __version__", 1),
        (f"{HOSTRACE}/hostrace/x.py", "import trtllm_kvfix", 1),
    ],
)
def test_an_import_that_goes_up_is_seen(file: str, text: str, count: int) -> None:
    assert len(list(python_complaints(SMALL, file, text))) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('#include "core/types.h"', 0),
        ('#include "device/device.h"', 1),
        ("#include <nanobind/nanobind.h>", 1),
        ("#include <Python.h>", 1),
        ("#include <vector>", 0),
    ],
)
def test_an_include_that_goes_up_is_seen(text: str, count: int) -> None:
    assert len(list(cpp_complaints(SMALL, "cpp/core/x.h", text))) == count


def test_a_table_that_goes_up_or_names_nobody_is_seen() -> None:
    assert len(list(goes_down({"a": frozenset({"b"}), "b": frozenset({"c"})}))) == 2
