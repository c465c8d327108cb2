"""The house rules as functions from a file's text to complaints, each with a sample that breaks it."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PYTHON_LINES_MAX = 300
CPP_LINES_MAX = 350
FUNCTION_LINES_MAX = 70
README_LINES_MAX = 150

# Words that a rule looks for are put together here, so that this file keeps the rules itself.
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
MACHINE_PATH = "/" + "root/x"


@dataclass(frozen=True)
class Rule:
    name: str
    paths: str  # regular expression, matched against the whole path relative to the repository
    complaints: Callable[[str], Iterator[str]]
    broken: str  # a text about which `complaints` must say something
    kept: str  # its good twin
    except_paths: str = "(?!)"

    def applies(self, path: str) -> bool:
        return bool(re.fullmatch(self.paths, path)) and not re.fullmatch(self.except_paths, path)


def lines_at_most(limit: int) -> Callable[[str], Iterator[str]]:
    def complaints(text: str) -> Iterator[str]:
        count = len(text.splitlines())
        if count > limit:
            yield f"{count} lines, at most {limit}: split it by noun"

    return complaints


def long_functions(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            count = node.end_lineno - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {count} lines, at most {FUNCTION_LINES_MAX}"


def extension_imports(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        else:
            continue
        if any("_core" in name.split(".") for name in imported):
            yield f"line {node.lineno}: imports the extension; use trtllm_kvfix.native"


def calls(*forbidden: str) -> Callable[[str], Iterator[str]]:
    """Complain about any use of these dotted names, and of the last part of each when it was imported by `from`."""
    by_from = {tuple(name.rsplit(".", 1)) for name in forbidden}

    def complaints(text: str) -> Iterator[str]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in forbidden:
                yield f"line {node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (node.module, alias.name) in by_from:
                        yield f"line {node.lineno}: from {node.module} import {alias.name}"

    return complaints


def constant_asserts(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant | ast.Tuple | ast.JoinedStr):
            yield f"line {node.lineno}: `{ast.unparse(node)}` cannot do its work"


def matches(pattern: str, why: str) -> Callable[[str], Iterator[str]]:
    compiled = re.compile(pattern, re.MULTILINE)

    def complaints(text: str) -> Iterator[str]:
        for found in compiled.finditer(text):
            yield f"line {text.count(chr(10), 0, found.start()) + 1}: {found.group().strip()}: {why}"

    return complaints


def includes(forbidden: str) -> Callable[[str], Iterator[str]]:
    return matches(rf"^\s*#\s*include\s*[<\"]({forbidden}).*", "this layer must not know it")


PYTHON = r".*\.py"
CPP = r".*\.(cc|h)"

RULES = [
    Rule("python file length", PYTHON, lines_at_most(PYTHON_LINES_MAX), "\n" * 301, "\n" * 300),
    Rule("C++ file length", CPP, lines_at_most(CPP_LINES_MAX), "\n" * 351, "\n" * 350),
    Rule("README length", r"README\.md", lines_at_most(README_LINES_MAX), "\n" * 151, "\n" * 150),
    Rule(
        "function length",
        PYTHON,
        long_functions,
        "def f():\n" + "    pass\n" * 70,
        "def f():\n" + "    pass\n" * 69,
    ),
    Rule(
        "one importer of the extension",
        PYTHON,
        extension_imports,
        "from trtllm_kvfix._core import BlockManager",
        "from trtllm_kvfix.native import BlockManager",
        except_paths=r"trtllm_kvfix/native\.py",
    ),
    Rule(
        "one reader of the environment",
        r"trtllm_kvfix/.*\.py",
        calls("os.environ", "os.getenv"),
        "import os\nos.environ.get('X')",
        "import os\nos.getcwd()",
        except_paths=r"trtllm_kvfix/settings\.py",
    ),
    Rule(
        "no sleeping tests",
        r"tests/.*\.py",
        calls("time.sleep"),
        "import time\ntime.sleep(1)",
        "import time\ntime.time()",
    ),
    Rule("asserts can fail", r"(tests|bench)/.*\.py", constant_asserts, "assert True", "assert x"),
    Rule(
        "no expected failures",
        r"tests/.*\.py",
        calls("pytest.mark.xfail", "pytest.xfail"),
        "@pytest.mark.xfail\ndef test_x(): ...",
        "@pytest.mark.parametrize\ndef test_x(): ...",
    ),
    Rule(
        "staging knows a device, not its driver",
        r"cpp/staging/.*",
        includes(r"cuda|device/cuda"),
        '#include "device/cuda_driver.h"',
        '#include "device/device.h"',
    ),
    Rule(
        "nanobind stays in the bindings",
        CPP,
        includes(r"nanobind/"),
        "#include <nanobind/nanobind.h>",
        "#include <vector>",
        except_paths=r"(cpp/bindings|tests/bound)/.*",
    ),
    Rule(
        "no paths of one machine",
        r".*",
        matches(r"(?<![\w.$}])/(root|home|work|Users)/[\w.-]+", "an absolute path exists on one machine only"),
        f"see {MACHINE_PATH}",
        "see docs/root/x",
        except_paths=r"LICENSE",
    ),
    Rule(
        "nothing unfinished",
        r".*\.(py|cc|h|cmake|md|toml|sh)|Makefile|CMakeLists\.txt",
        matches(rf"\b({'|'.join(UNFINISHED)})\b", "finish it, or say why it is right as it is"),
        f"# {UNFINISHED[0]}: later",
        "# done",
    ),
]
