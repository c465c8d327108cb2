"""Whether a call of one object comes to another, as far as its code and what it holds can show.

A profiler's wrapper calls what it has wrapped; a plugin's function that stands in its place does not.
`functools.wraps` marks both alike, so the mark says nothing. What counts is what the code refers to: variables of its
closure, globals and attributes that it names, the next class of `super()`, arguments of a partial, what a proxy wraps.
Nothing is called: the object is somebody else's, and a call of it might do anything.

A function that only reads an attribute of ours, such as what it has wrapped or its name, does not come to it. One that
passes ours on to something else is taken for a wrapper.
"""

import dis
import functools
from collections import deque
from collections.abc import Iterator, Set
from contextlib import suppress
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from trtllm_kvfix.log import described as described_error

LOOKED_AT_MAX = 2000  # objects; a wrapper is a few steps away
CONTAINERS = (list, tuple, set, frozenset)
CONTAINER_LEVELS_MAX = 2
CALLS = ("__call__", "__get__", "__func__")  # attributes of a function that come to it
UNWRAP = "unwrap"  # `inspect.unwrap(ours)` is what ours has wrapped


def reaches(caller: Any, called: Any) -> bool:
    wanted = {id(called), id(plain(called))}
    seen: set[int] = set()
    todo = deque([caller])
    while todo and len(seen) < LOOKED_AT_MAX:
        each = todo.popleft()
        if id(each) in wanted:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            todo += _referred_to(each)
    return False


def plain(found: Any) -> Any:
    """The function behind a static or class method."""
    return found.__func__ if is_a(found, staticmethod, classmethod) else found


def is_a(one: Any, *kinds: type) -> bool:
    """By its type alone: `isinstance` asks the object, too."""
    return issubclass(type(one), kinds)


def described(found: Any) -> str:
    """Name what stands somewhere, by its code: wrappers bear the names of what they wrap."""
    function = plain(found)
    if is_a(function, FunctionType):
        code = function.__code__
        return f"{function.__globals__.get('__name__')}.{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
    kind = type(function)
    try:
        return f"an object of {kind.__module__}.{kind.__qualname__}"
    except Exception as error:
        return f"an object that cannot be named ({described_error(error)})"


def _referred_to(each: Any) -> Iterator[Any]:
    if is_a(each, staticmethod, classmethod):
        yield each.__func__
    elif is_a(each, property):
        yield from (each.fget, each.fset)
    elif is_a(each, functools.partial, functools.partialmethod):
        yield from (each.func, *each.args, *each.keywords.values())
    elif is_a(each, MethodType):
        yield each.__func__
        yield from _named_in([each.__self__], _names(each.__func__), _passed(each.__func__))
    elif is_a(each, FunctionType):
        yield from _of_function(each)
    elif not is_a(each, type, ModuleType):
        yield from _of_object(each)


def _of_function(function: FunctionType) -> Iterator[Any]:
    names, passed = _names(function), _passed(function)
    held = {**_closure(function), **_defaults(function)}
    held |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    for each in (held[name] for name in held if name in passed):
        yield each
        yield from _contents(each)
    yield from _named_in(list(held.values()), names, passed)
    if "__wrapped__" in passed:
        yield from _named_in([function], {"__wrapped__"}, {"__wrapped__"})


def _of_object(each: Any) -> Iterator[Any]:
    """An object that is called, or bound: what its `__call__`, and methods that this calls, refer to, and what a proxy
    wraps."""
    methods, names, passed = ["__call__", "__get__"], {"__wrapped__"}, {"__wrapped__"}
    for name in methods:  # it grows
        method = _attribute(type(each), name)
        if is_a(method, FunctionType):
            yield method
            methods += [other for other in _names(method) - names if other not in methods]
            names |= _names(method)
            passed |= _passed(method)
    yield from _named_in([each], names, passed)


def _names(function: Any) -> frozenset[str]:
    """Names of globals, of attributes and of variables of a closure in a function's code, and in code inside it."""
    return _of_code(function.__code__)[0] if is_a(function, FunctionType) else frozenset()


def _passed(function: Any) -> frozenset[str]:
    """Those names, and arguments, of which more is used than an attribute: they are called, kept or passed on."""
    return _of_code(function.__code__)[1] if is_a(function, FunctionType) else frozenset()


@functools.lru_cache(maxsize=LOOKED_AT_MAX)
def _of_code(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    names, passed, before = {*code.co_names, *code.co_freevars}, set[str](), ""
    steps = [each for each in dis.get_instructions(code) if each.opname not in ("EXTENDED_ARG", "PUSH_NULL", "NOP")]
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        if "LOAD_" not in step.opname or step.opname in ("LOAD_CONST", "LOAD_CLOSURE"):
            continue
        loaded = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        is_read = following.opname in ("LOAD_ATTR", "LOAD_METHOD") and following.argval not in CALLS
        passed.update(loaded[:-1] if is_read or before == UNWRAP else loaded)
        before = loaded[-1]
    for inside in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        more_names, more_passed = _of_code(inside)
        names |= more_names
        passed |= more_passed
    return frozenset(names), frozenset(passed)


def _named_in(owners: list[Any], names: Set[str], passed: Set[str]) -> Iterator[Any]:
    """Attributes of these objects that bear one of the names, and attributes of those of which the code reads only
    attributes. Of a class, those of its bases too, as `super()` finds them. They are read where they lie: an attribute
    that is computed would run code of somebody else's."""
    for owner in owners:
        own = _slots(owner, names) | attributes(owner)
        for name in names & own.keys():
            if name in passed:
                yield own[name]
                yield from _contents(own[name])
            else:
                deeper = attributes(own[name])
                yield from (deeper[each] for each in passed & deeper.keys())
        for base in mro(owner)[1:] if is_a(owner, type) else ():
            yield from (vars(base)[name] for name in names & vars(base).keys())


def attributes(owner: Any) -> dict[str, Any]:
    """What it holds itself, without a call of any code of its own."""
    try:
        found = dict(object.__getattribute__(owner, "__dict__"))
    except Exception:
        found = {}
    if "__wrapped__" not in found and _attribute(type(owner), "__wrapped__") is not None:  # a proxy in C has it there
        found["__wrapped__"] = _attribute(owner, "__wrapped__")
    return found


def mro(kind: type) -> tuple[type, ...]:
    """Read where it lies: a metaclass may answer for it."""
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def _slots(owner: Any, names: Set[str]) -> dict[str, Any]:
    found = {}
    for kind in mro(type(owner)):
        own = type.__dict__["__dict__"].__get__(kind)
        for name in names & own.keys():
            if type(own[name]) is MemberDescriptorType:
                with suppress(AttributeError):  # an empty slot
                    found[name] = own[name].__get__(owner)
    return found


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:
        return None


def _closure(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a name that is bound later
            found[name] = cell.cell_contents
    return found


def _defaults(function: FunctionType) -> dict[str, Any]:
    values, code = function.__defaults__ or (), function.__code__
    named = code.co_varnames[: code.co_argcount][-len(values) :] if values else ()
    return dict(zip(named, values, strict=False)) | (function.__kwdefaults__ or {})


def _contents(each: Any) -> Iterator[Any]:
    """A patcher may keep what it has replaced in a list, or by name, and those in another."""
    todo = [each]
    for _ in range(CONTAINER_LEVELS_MAX):
        todo = [item for some in todo for item in _items(some)]
        yield from todo


def _items(each: Any) -> list[Any]:
    if type(each) is dict and len(each) < LOOKED_AT_MAX:
        return list(each.values())
    return list(each) if type(each) in CONTAINERS and len(each) < LOOKED_AT_MAX else []
