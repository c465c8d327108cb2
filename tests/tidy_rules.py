"""The house rules as functions from a file's text to complaints, each with a sample that breaks it."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from tests.function_lengths import FUNCTION_LINES_MAX, long_cpp_functions, long_functions

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


@lru_cache(maxsize=1)
def nodes_of(text: str) -> list[ast.AST]:
    """Kept for the next rule, which reads the same file."""
    return list(ast.walk(ast.parse(text)))


def function_lengths(text: str) -> Iterator[str]:
    return long_functions(nodes_of(text))


def lines_at_most(limit: int) -> Callable[[str], Iterator[str]]:
    def complaints(text: str) -> Iterator[str]:
        count = len(text.splitlines())
        if count > limit:
            yield f"{count} lines, at most {limit}"

    return complaints


def extension_imports(text: str) -> Iterator[str]:
    for node in nodes_of(text):
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
        for node in nodes_of(text):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in forbidden:
                yield f"line {node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (node.module, alias.name) in by_from:
                        yield f"line {node.lineno}: from {node.module} import {alias.name}"

    return complaints


WRITING = re.compile(r"[wax+]")  # in the mode of `open`
WRITERS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "savefig", "copyfile", "copytree"}
MAKERS = {"NamedTemporaryFile", "TemporaryFile", "mkstemp", "mkdtemp", "TemporaryDirectory", "mkdir", "makedirs"}


def writes_files(text: str) -> Iterator[str]:
    """A file that others can read, or redirect by a link, is written in the modules that think of both."""
    for node in nodes_of(text):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        modes = [each.value for each in (*node.args[:2], *(key.value for key in node.keywords if key.arg == "mode"))
                 if isinstance(each, ast.Constant) and isinstance(each.value, str)]  # fmt: skip
        opens = name == "open" and (called != "os.open" and any(len(m) < 4 and WRITING.search(m) for m in modes))
        opens |= called == "os.open" and any(flag in ast.unparse(node) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
        if opens or name in WRITERS | MAKERS:
            yield f"line {node.lineno}: {ast.unparse(node)[:60]}: write it by runtime_files.py, or written.py"


def is_empty(function: ast.FunctionDef) -> bool:
    """Nothing but a docstring."""
    return all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in function.body)


def ends_in_children(text: str) -> Iterator[str]:
    """Python ends objects in a child of fork() as well, with the locks of threads that the child does not have."""
    for node in nodes_of(text):
        if not isinstance(node, ast.FunctionDef) or node.name != "__del__" or is_empty(node):
            continue
        if not re.search(r"\.left\(\)|getpid\(\)", ast.unparse(node)):
            yield f"line {node.lineno}: __del__ does not ask whether it is in a child (trtllm_kvfix/forks.py)"


def constant_asserts(text: str) -> Iterator[str]:
    for node in nodes_of(text):
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


def cpp_samples(lines: int) -> str:
    """Functions of so many lines among braces that are none of a function, or not of one outside another."""
    body = "    run([&](int i) { return i; });\n" * (lines - 2)
    return (
        'namespace {\nconst char* brace = "{"; // {\nconstexpr int kTable[] = {\n'
        + "    1,\n" * lines
        + "};\nstruct S {\n    int member{0};\n"
        + f"    explicit S(std::map<int, int> given = {{}}) : member{{1}} {{\n{body}    }}\n"
        + "};\n}\n"
    )


RULES = [
    Rule(
        "no half of a merge",
        r".*\.(py|md|cc|cuh?|h|yaml|toml|sh|cmake)",
        matches(rf"^({'<' * 7}|{'>' * 7}) .*", "two versions of one text"),
        f"{'<' * 7} HEAD\nours\n",
        "ours\n",
    ),
    Rule("README length", r"README\.md", lines_at_most(README_LINES_MAX), "\n" * 151, "\n" * 150),
    Rule(
        "function length in Python",
        PYTHON,
        function_lengths,
        "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX,
        "def f():\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1),
    ),
    Rule(
        "function length in C++",
        r".*\.(cc|cuh?|h)",
        long_cpp_functions,
        cpp_samples(FUNCTION_LINES_MAX + 1),
        cpp_samples(FUNCTION_LINES_MAX),
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
        # The second runs where the first cannot be imported.
        except_paths=r"trtllm_kvfix/(settings|overlay/bootstrap/sitecustomize)\.py",
    ),
    Rule(
        "no line in the log may raise",
        r"trtllm_kvfix/.*\.py",
        calls("logging.getLogger", "warnings.warn"),
        "import logging\nlog = logging.getLogger('x')",
        "from trtllm_kvfix.log import log",
        except_paths=r"trtllm_kvfix/log\.py",
    ),
    Rule(
        "no sleeping tests",
        r"(watch/)?tests/.*\.py",
        calls("time.sleep"),
        "import time\ntime.sleep(1)",
        "import time\ntime.time()",
    ),
    Rule(
        "ends do nothing in children",
        r"trtllm_kvfix/.*\.py",
        ends_in_children,
        "class A:\n    def __del__(self):\n        self.device.destroy_event(1)",
        "class A:\n    def __del__(self):\n        self.home.left() or self.device.destroy_event(1)",
    ),
    Rule(
        "one writer of files",
        r"trtllm_kvfix/.*\.py",
        writes_files,
        "from pathlib import Path\nPath('x').write_text('x')",
        "from pathlib import Path\nPath('x').read_text()",
        # The writers themselves; the hook's own file, a picture where the user wants it, private folders of mkdtemp,
        # the null device, and a recording, which grows line by line.
        except_paths=r"trtllm_kvfix/(runtime_files|written|cli|recording|tools/(pictures|reproduce)|"
        r"overlay/(hook_file|watcher))\.py",
    ),
    Rule(
        "one reader of somebody else's files",
        r"trtllm_kvfix/.*\.py",
        matches(r"\.read_(text|bytes)\(|\.open\([\"']rb?[\"']", "read it by foreign_files.py"),
        "text = file.read_text()",
        "text = text_of(file, BYTES_MAX)",
        # The kernel's files and ours, and files that a command line names, which may be a pipe of the shell.
        except_paths=r"trtllm_kvfix/(engine/machine|machine|offload/host_tier|overlay/(hook_file|watcher)|pages|"
        r"runtime_files|tools/(replay/source|reproduce))\.py",
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
        except_paths=r"(watch/)?LICENSE",
    ),
    Rule(
        "nothing unfinished",
        r".*\.(py|cc|h|cmake|md|toml|sh)|Makefile|CMakeLists\.txt",
        matches(rf"\b({'|'.join(UNFINISHED)})\b", "finish it, or say why it is right as it is"),
        f"# {UNFINISHED[0]}: later",
        "# done",
    ),
]
