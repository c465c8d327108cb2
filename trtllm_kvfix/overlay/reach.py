"""Whether a call of one object comes to another, as far as its code and what it holds can show.

A profiler's wrapper calls what it has wrapped; a plugin's function that stands in its place does not.
`functools.wraps` marks both alike, so the mark says nothing. What counts is what the code refers to: variables of its
closure, globals and attributes that it names, the next class of `super()`, arguments of a partial, what a proxy wraps.
Nothing is called: the object is somebody else's, and a call of it might do anything.

A function that refers to ours and does not call it is taken for a wrapper.
"""

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

LOOKED_AT_MAX = 2000  # objects; a wrapper is a few steps away
CONTAINERS = (list, tuple, set, frozenset)


def reaches(caller: Any, called: Any) -> bool:
    wanted = {id(called), id(plain(called))}
    seen: set[int] = set()
    todo = [caller]
    while todo and len(seen) < LOOKED_AT_MAX:
        each = todo.pop()
        if id(each) in wanted:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            todo += _referred_to(each)
    return False


def plain(found: Any) -> Any:
    """The function behind a static or class method."""
    return found.__func__ if _is(found, staticmethod, classmethod) else found


def _is(one: Any, *kinds: type) -> bool:
    """By its type alone: `isinstance` asks the object, too."""
    return issubclass(type(one), kinds)


def described(found: Any) -> str:
    """Name what stands somewhere, by its code: wrappers bear the names of what they wrap."""
    function = plain(found)
    if _is(function, FunctionType):
        code = function.__code__
        return f"{function.__globals__.get('__name__')}.{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
    kind = type(function)
    return f"an object of {kind.__module__}.{kind.__qualname__}"


def _referred_to(each: Any) -> Iterator[Any]:
    if _is(each, staticmethod, classmethod):
        yield each.__func__
    elif _is(each, property):
        yield from (each.fget, each.fset)
    elif _is(each, functools.partial, functools.partialmethod):
        yield from (each.func, *each.args, *each.keywords.values())
    elif _is(each, MethodType):
        yield each.__func__
        yield from _named_in([each.__self__], _names(each.__func__))
    elif _is(each, FunctionType):
        yield from _of_function(each)
    elif not _is(each, type, ModuleType):
        yield from _of_object(each)


def _of_function(function: FunctionType) -> Iterator[Any]:
    names = _names(function)
    held = [*_closure(function), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    held += [function.__globals__[name] for name in names if name in function.__globals__]
    for each in held:
        yield each
        yield from _contents(each)
    yield from _named_in(held, names)
    if "__wrapped__" in names:
        yield from _named_in([function], {"__wrapped__"})


def _of_object(each: Any) -> Iterator[Any]:
    """An object that is called: what its `__call__`, and methods that this calls, refer to, and what a proxy wraps."""
    methods, names = ["__call__"], {"__wrapped__"}
    for name in methods:  # it grows
        method = _attribute(type(each), name)
        if _is(method, FunctionType):
            yield method
            methods += [other for other in _names(method) - names if other not in methods]
            names |= _names(method)
    yield from _named_in([each], names)


def _names(function: Any) -> set[str]:
    """Names of globals and attributes in a function's code, and in code inside it."""
    names: set[str] = set()
    todo = [function.__code__] if _is(function, FunctionType) else []
    while todo:
        each = todo.pop()
        names.update(each.co_names)
        todo += [constant for constant in each.co_consts if _is(constant, CodeType)]
    return names


def _named_in(owners: list[Any], names: set[str]) -> Iterator[Any]:
    """Attributes of these objects that bear one of the names. Of a class, those of its bases too, as `super()` finds
    them. They are read where they lie: an attribute that is computed would run code of somebody else's."""
    for owner in owners:
        own = attributes(owner)
        for name in names & own.keys():
            yield own[name]
            yield from _contents(own[name])
        for base in owner.__mro__[1:] if _is(owner, type) else ():
            yield from (vars(base)[name] for name in names & vars(base).keys())


def attributes(owner: Any) -> dict[str, Any]:
    """What it holds itself, without a call of any code of its own."""
    try:
        found = dict(object.__getattribute__(owner, "__dict__"))
    except Exception:
        found = {}
    if "__wrapped__" not in found and hasattr(type(owner), "__wrapped__"):  # a proxy in C has it on its type
        found["__wrapped__"] = _attribute(owner, "__wrapped__")
    return found


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:
        return None


def _closure(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is bound later
            continue


def _contents(each: Any) -> Iterator[Any]:
    """A patcher may keep what it has replaced in a list, or by name."""
    if type(each) is dict and len(each) < LOOKED_AT_MAX:
        yield from list(each.values())
    elif type(each) in CONTAINERS and len(each) < LOOKED_AT_MAX:
        yield from list(each)
