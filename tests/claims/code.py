"""The essence of a source is its code: comments, docstrings and layout do not count.

Two texts with the same `essence` behave and cost the same. The reverse does not hold: a renamed variable counts.
Digests are kept for years, so they must not depend on the Python that makes them: `ast.dump` does.
"""

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping

DOCUMENTATION = (".md", ".pyi")  # a stub says what the extension has, whose sources count
C_FAMILY = (".cc", ".cu", ".cuh", ".def", ".h")
CMAKE = (".cmake", "CMakeLists.txt")
_GENERATED = re.compile(r"(^|/)__pycache__/|\.(so|pyc)$")

# The order matters: a comment is no division, 1'000 begins no character, and R"(//)" is no comment. After \ a line goes
# on, in a // comment as well.
_C_TOKEN = re.compile(
    r"""(?P<comment>//(?:\\.|[^\\\n])*|/\*.*?\*/)
    |(?P<space>(?:\\\r?\n|[^\S\n])+)
    |(?P<line>\n)
    |(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)")
    |(?P<text>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
    |(?P<character>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*')
    |(?P<number>\.?\d(?:'?\w|\.|(?<=[eEpP])[+-])*)
    |(?P<word>\w+)
    |(?P<sign><<=|>>=|<=>|->\*|\.\.\.|::|\+\+|--|->|\.\*|<<|>>|[<>=!]=|&&|\|\||[-+*/%&|^]=|\#\#|.)""",
    re.DOTALL | re.VERBOSE,
)
_BETWEEN_PARTS = re.compile(r'"\n"')  # of a literal that is too long for its line
# In the bindings, what holds a space or ends a sentence is a docstring, a signature for help(), or a message.
_BINDINGS = "cpp/bindings/"
_SENTENCE = re.compile(r'^"(?:(?:\\.|[^"\\\n])* (?:\\.|[^"\\\n])*|\w+\.)"$', re.MULTILINE)
_CMAKE_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|#[^\n]*', re.DOTALL)


def counts(path: str) -> bool:
    """Whether a file is part of what rows measure, as git lists it or as it lies beside what a build leaves there."""
    return not path.endswith(DOCUMENTATION) and not _GENERATED.search(path)


def essence(path: str, content: bytes) -> bytes:
    if path.endswith(".py"):
        parts: list[str] = []
        _add_node(ast.parse(content, path), parts)
        return "".join(parts).encode()
    if path.endswith(C_FAMILY):
        tokens = _BETWEEN_PARTS.sub("", "\n".join(_of_c(content.decode())))
        return (_SENTENCE.sub('""', tokens) if path.startswith(_BINDINGS) else tokens).encode()
    if path.endswith(CMAKE):
        bare = _CMAKE_COMMENT.sub(lambda found: found.group(1) or "", content.decode())
        return "\n".join(filter(None, map(str.strip, bare.splitlines()))).encode()
    return content


def digest(essences: Mapping[str, bytes]) -> str:
    """The digest of files with these names; it is empty where there are none."""
    if not essences:
        return ""
    summary = hashlib.sha256()
    for path, text in sorted(essences.items()):
        for part in (path.encode(), text):
            summary.update(len(part).to_bytes(8, "little") + part)
    return summary.hexdigest()[:20]


def _add_node(node: object, parts: list[str]) -> None:
    """Fields that are absent are left out, because later versions of Python add fields that are mostly empty."""
    if isinstance(node, ast.Constant):
        parts.append(f"{node.value!a};")
    elif isinstance(node, ast.AST):
        parts.append(f"{type(node).__name__}(")
        for name in node._fields:  # quicker than ast.iter_fields, and there are years of sources
            value = getattr(node, name, None)
            part = _without_docstring(node, value) if name == "body" else value
            if part is not None and part != []:
                parts.append(f"{name}=")
                _add_node(part, parts)
        parts.append(")")
    elif isinstance(node, list):
        parts.append("[")
        for each in node:
            _add_node(each, parts)
        parts.append("]")
    else:
        parts.append(f"{node!r};")


def _without_docstring(node: ast.AST, body: object) -> object:
    """`pass` goes as well: whoever adds a docstring takes it away."""
    if not isinstance(body, list):
        return body  # of a lambda, or of a conditional expression
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    left = body[1:] if documented and body and _is_text(body[0]) else body
    return [statement for statement in left if not isinstance(statement, ast.Pass)]


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _of_c(text: str) -> Iterator[str]:
    """Tokens; a directive is one, with its spaces, since F(x) and F (x) are two things where F is defined."""
    directive: list[str] = []
    begins = True  # nothing stands in this line yet
    for found in _C_TOKEN.finditer(text + "\n"):
        kind, token = found.lastgroup, found.group()
        if kind == "line":
            if directive:
                yield "".join(directive).strip()
            directive, begins = [], True
        elif kind in {"comment", "space"}:
            if directive and directive[-1] != " ":
                directive.append(" ")
        elif directive or (begins and token == "#"):
            directive.append(token)
        else:
            yield repr(token) if kind == "raw" else token  # what it holds is no border between parts
            begins = False
