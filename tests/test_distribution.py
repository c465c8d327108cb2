"""A distribution has licences and notices, the citation, and an extension that names no folder of its builder."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml

import trtllm_kvfix
from hostrace.launch import library
from trtllm_kvfix.native import BlockManager

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
# The path of a source file from the root of the file system, as assertions and messages would hold it.
SOURCE_PATH = re.compile(rb"(?<![\w./-])/[\w.+-]+(?:/[\w.+-]+)*\.(?:cc|cpp|cu|cuh|h|hpp|py)\b")


def binaries() -> Iterator[Path]:
    """The extension, and the library of hostrace. An editable install keeps both in a folder of its own."""
    extension = sys.modules[BlockManager.__module__].__file__
    assert extension is not None
    yield from Path(extension).parent.glob("*.so")
    yield library()


def words(text: str) -> list[str]:
    """The words without the line breaks and the frame of a comment."""
    return re.sub(r"^\s*/?\*+/?", "", text, flags=re.MULTILINE).split()


def test_licence_expression_names_what_the_wheel_holds() -> None:
    assert 'license = "Apache-2.0 AND BSD-3-Clause AND MIT"' in PYPROJECT
    assert "License ::" not in PYPROJECT  # the expression takes the place of classifiers


def test_notice_of_nanobind_is_its_licence() -> None:
    files = distribution("nanobind").files or []
    licence = next(file for file in files if file.name == "LICENSE").read_text()
    assert words((ROOT / "licenses/nanobind.txt").read_text())[-len(words(licence)) :] == words(licence)


def test_notice_of_robin_map_is_its_licence() -> None:
    header = distribution("nanobind").locate_file("nanobind/ext/robin_map/include/tsl/robin_map.h")
    licence = Path(str(header)).read_text().partition("*/")[0]
    assert words((ROOT / "licenses/robin-map.txt").read_text())[-len(words(licence)) :] == words(licence)


def test_every_notice_is_distributed() -> None:
    assert 'license-files = ["LICENSE", "licenses/*.txt"]' in PYPROJECT
    assert {path.name for path in (ROOT / "licenses").iterdir()} == {"nanobind.txt", "robin-map.txt"}


def test_hostrace_comes_with_the_same_licence() -> None:
    assert (ROOT / "watch/LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    declared = (ROOT / "watch/pyproject.toml").read_text()
    assert 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]' in declared


def test_extension_names_no_source_of_its_build() -> None:
    for binary in binaries():
        content = binary.read_bytes()
        assert SOURCE_PATH.findall(content) == [], binary.name
        assert str(ROOT).encode() not in content


def test_a_path_of_a_build_would_be_found() -> None:
    assert SOURCE_PATH.findall(b"\0/src/kvfix/cpp/core/pin.cc\0./cpp/core/hold.cc\0build/x.h\0") == [
        b"/src/kvfix/cpp/core/pin.cc"
    ]


def test_citation_is_of_this_version_and_licence() -> None:
    citation: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what its schema requires
    assert citation["version"] == trtllm_kvfix.__version__
    assert citation["license"] == "Apache-2.0"
    authors = re.findall(r'^authors = .*name = "(.*?)"', PYPROJECT, re.MULTILINE)
    assert [author["name"] for author in citation["authors"]] == authors
