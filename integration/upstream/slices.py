"""Cuts complete statements and methods out of contiguous parts of a source file, without changing a character."""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

TOP = re.compile(r"^[^\s#)\]}]", re.MULTILINE)
STATEMENT = re.compile(r"class|def|async def|@|import|from|[A-Za-z_]\w* *[:=]")
MEMBER = re.compile(r"^    (?=@|def |async def )", re.MULTILINE)


@dataclass(frozen=True)
class Slice:
    """A statement of a module, the head of a class, or a member of a class."""

    name: str  # qualified: KVCacheManager.prepare_resources
    text: str  # verbatim, with the comments before it
    core: str  # verbatim, from its first decorator to its last line; what a checkout is compared by

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.core.encode()).hexdigest()


def cut(text: str, *, starts_file: bool, ends_file: bool, open_class: str | None) -> tuple[list[Slice], str | None]:
    """All that lies complete in a contiguous part. Returns the slices, and the class that the part ends in.

    open_class: the class in whose body the part begins, where it begins in one.
    """
    found: list[Slice] = []
    first = _first_top(text, starts_file=starts_file)
    if open_class is not None and not starts_file:
        whole = first is not None or ends_file
        found += _members(text[: first if first is not None else len(text)], open_class, whole=whole)
    if first is None:
        return found, open_class
    last = open_class
    for start, end in _statements(text, first):
        slices, last = _statement(text[start:end], goes_on=end == len(text) and not ends_file)
        found += slices
    return found, last


def of_module(text: str) -> Iterator[Slice]:
    """Every slice of a whole file."""
    whole = text if text.endswith("\n") else text + "\n"
    yield from cut(whole, starts_file=True, ends_file=True, open_class=None)[0]


def _first_top(text: str, *, starts_file: bool) -> int | None:
    """The first line that begins a statement of the module; a part may begin in the middle of one."""
    for found in TOP.finditer(text, 0 if starts_file else text.find("\n") + 1):
        if starts_file:
            return found.start()
        if re.match(
            r"(class|def|async def|@|import|from|[A-Za-z_]\w* *[:=])", text[found.start() : found.start() + 80]
        ):
            return found.start()
    return None


def _statements(text: str, first: int) -> Iterator[tuple[int, int]]:
    """Spans of the module's statements. Comments and blank lines go with what follows them."""
    starts = [found.start() for found in TOP.finditer(text, first)]
    begin, position = first, 0
    while position < len(starts):
        for following in range(position + 1, len(starts) + 1):
            end = starts[following] if following < len(starts) else len(text)
            if _body(text[begin:end]) or following == len(starts):
                yield begin, end
                begin, position = end, following
                break


def _statement(text: str, *, goes_on: bool) -> tuple[list[Slice], str | None]:
    """goes_on: the part ends with this statement, which may go on behind it."""
    body = _body(text)
    if not goes_on and body and isinstance(body[0], ast.ClassDef):
        return _class(text, body[0]), None
    if not goes_on and body:
        return [Slice(_name(node), _span(text, node), _span(text, node)) for node in body], None
    return _open_class(text)


def _class(text: str, node: ast.ClassDef) -> list[Slice]:
    lines = text.splitlines(keepends=True)
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    first = _first_line(methods[0]) if methods else (node.end_lineno or 0) + 1
    head = "".join(lines[: first - 1])
    slices = [Slice(node.name, head, "".join(lines[_first_line(node) - 1 : first - 1]).rstrip())]
    if methods:
        slices += _members("".join(lines[first - 1 :]), node.name, whole=True)
    return slices


def _open_class(text: str) -> tuple[list[Slice], str | None]:
    """A class whose end lies behind the part: its head and the members that lie complete."""
    named = re.search(r"^class (\w+)", text, re.MULTILINE)
    member = MEMBER.search(text)
    if named is None or member is None:
        return [], None
    head = text[: member.start()]
    if _body(head + "    pass\n") is None:
        return [], named[1]
    core = head[_core_start(head) :].rstrip()
    return [Slice(named[1], head, core), *_members(text[member.start() :], named[1])], named[1]


def _core_start(head: str) -> int:
    found = re.search(r"^(@|class )", head, re.MULTILINE)
    return found.start() if found else 0


def _members(text: str, owner: str, *, whole: bool = False) -> list[Slice]:
    """Methods, and what a class states between them. Without `whole`, the last may go on behind the text."""
    starts = [found.start() for found in MEMBER.finditer(text)] + [len(text)]
    slices: list[Slice] = []
    position = 0
    while position < len(starts) - 1:
        for following in range(position + 1, len(starts)):
            complete = whole or following < len(starts) - 1
            piece = text[starts[position] : starts[following]]
            node = _member(piece) if complete else None
            if node is not None:
                core = _span("class _:\n" + piece, node).rstrip()
                slices.append(Slice(f"{owner}.{_name(node)}", piece, core))
                position = following
                break
        else:
            position += 1
    # Half of a property would be one that cannot be set.
    behind = text[text.rfind(slices[-1].text) + len(slices[-1].text) :] if slices else ""
    cut_off = set(re.findall(r"^    @(\w+)\.setter", behind, re.MULTILINE))
    return [each for each in slices if each.name.split(".")[-1] not in cut_off]


def _member(piece: str) -> ast.stmt | None:
    body = _body("class _:\n" + piece)
    if body is None or len(body) != 1 or not isinstance(body[0], ast.ClassDef):
        return None
    inner = body[0].body
    return inner[0] if isinstance(inner[0], ast.FunctionDef | ast.AsyncFunctionDef) else None


def _body(text: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(text).body
    except SyntaxError:
        return None


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _span(text: str, node: ast.stmt) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[_first_line(node) - 1 : node.end_lineno])


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        decorators = [ast.unparse(each) for each in node.decorator_list]
        setter = [each for each in decorators if each.endswith((".setter", ".getter"))]
        return setter[0] if setter else node.name
    if isinstance(node, ast.ImportFrom):
        return f"from {'.' * node.level}{node.module or ''} import {node.names[0].name}"
    if isinstance(node, ast.Import):
        return f"import {node.names[0].name}"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return type(node).__name__
