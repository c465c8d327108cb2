"""Lengths of functions in Python and in clang-formatted C++, counted from their first line to their last.

The C++ side matches braces and knows no more of the language than what tells a function's brace from others.
"""

import ast
import re
from collections.abc import Iterable, Iterator

FUNCTION_LINES_MAX = 60

# Comments, literals and directives, whose braces are none. A quote behind a digit separates digits.
_BLANKED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"""
    r"|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_CONTAINER = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def long_functions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield from _complaint(node.lineno, node.name, node.end_lineno - node.lineno + 1)


def long_cpp_functions(text: str) -> Iterator[str]:
    code = _BLANKED.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    for begin, end in _outermost_functions(code):
        line = code.count("\n", 0, begin) + 1
        yield from _complaint(line, _name(code[begin:end]), code.count("\n", begin, end) + 1)


def _complaint(line: int, name: str, count: int) -> Iterator[str]:
    if count > FUNCTION_LINES_MAX:
        yield f"line {line}: {name} has {count} lines, at most {FUNCTION_LINES_MAX}"


def _outermost_functions(code: str) -> Iterator[tuple[int, int]]:
    """(where the declaration begins, where the body ends)."""
    statement = 0  # where the one that is read begins
    parentheses = 0
    inner = 0  # braces in the function or initializer that is read; 0 outside
    is_function = False
    for found in re.finditer(r"[(){};]", code):
        token, at = found.group(), found.start()
        if inner:
            inner += (token == "{") - (token == "}")
            if inner == 0 and is_function:
                yield statement + len(code[statement:at]) - len(code[statement:at].lstrip()), at
                statement = at + 1
        elif token in "()":
            parentheses += 1 if token == "(" else -1
        elif parentheses:
            continue
        elif token == "{" and not _opens_container(code[statement:at]):
            # `member_{value}` and `= {...}` are values. Behind a declarator, the format wants a space.
            head = code[statement:at]
            is_function = "(" in head and head[-1].isspace() and not head.rstrip().endswith("=")
            inner = 1
        else:
            statement = at + 1


def _opens_container(head: str) -> bool:
    """Whether functions may be in these braces."""
    inmost = re.compile(r"<[^<>()]*>|\([^()]*\)")
    while inmost.search(head):
        head = inmost.sub("", head)
    return bool(_CONTAINER.search(head))


def _name(function: str) -> str:
    found = re.search(r"([\w:~]+)\s*\(([^()]*)", function)
    if not found:
        return "a function"
    # The tests of GoogleTest are named in the macro's parentheses.
    return f"{found[1]}({found[2]})" if found[1].startswith(("TEST", "TYPED_TEST")) else found[1]
