"""Values that pass between upstream's classes and our `.impl` are held against what the bound extension declares.

nanobind writes a signature for each method that it binds. Arguments are read as its casters do: an int may be anything
that `__index__` gives, a sequence anything that can be indexed. Results are those of C++: an int is Python's, never
numpy's. What the signature calls `object` is a tensor; it is compared with the one that the bound manager returns.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

SIGNATURE = re.compile(r"^def \w*\((?P<arguments>.*)\) -> (?P<result>.+)$")
PLAIN = {"None": type(None), "int": int, "bool": bool, "float": float}
EVENTS = "get_latest_events"  # the extension's events are numbers


class Declared:
    """One method of a bound class."""

    def __init__(self, name: str, signature: str, module: Any) -> None:
        found = SIGNATURE.match(signature)
        assert found, signature
        self.name, self.signature, self._module = name, signature, module
        self.arguments = [each for each in _split(found["arguments"]) if each not in ("self", "/")]
        self.result = found["result"]

    def objections(self, given: Sequence[Any], named: Mapping[str, Any], result: Any) -> list[str]:
        """Names each part of a call that is not of its declared type."""
        found = []
        kinds = {_name_of(each): _kind_of(each) for each in self.arguments}
        for (argument, kind), value in zip(kinds.items(), given, strict=False):
            found += self._objection(f"argument {argument}", kind, value, self._may_pass)
        if len(given) > len(kinds):
            found.append(f"{len(given)} arguments, but {len(kinds)} are declared")
        for argument, value in named.items():
            found += self._objection(
                f"argument {argument}", kinds.get(argument, "no such argument"), value, self._may_pass
            )
        if self.name != EVENTS:
            found += self._objection("result", self.result, result, self._is)
        return [f"{self.name}: {each}" for each in found]

    def _objection(self, what: str, kind: str, value: Any, fits: Callable[[str, Any], bool]) -> list[str]:
        return [] if fits(kind, value) else [f"{what} is {shown(value)}, declared is {kind}"]

    def _may_pass(self, kind: str, value: Any) -> bool:
        if kind == "int":
            return isinstance(value, Integral) and not isinstance(value, bool)
        if kind.startswith("collections.abc.Sequence[") or kind == "list":
            inner = kind.removeprefix("collections.abc.Sequence[")[:-1] if kind != "list" else "object"
            listed = isinstance(value, Sequence) if kind != "list" else type(value) is list
            return listed and all(self._may_pass(inner, each) for each in value)
        if " | " in kind:
            return any(self._may_pass(each, value) for each in kind.split(" | "))
        if kind == "float":
            return isinstance(value, Real)
        if kind == "ndarray[]":
            return hasattr(value, "__dlpack__")
        return self._is(kind, value)

    def _is(self, kind: str, value: Any) -> bool:
        if " | " in kind:
            return any(self._is(each, value) for each in kind.split(" | "))
        if kind in PLAIN:
            return type(value) is PLAIN[kind]
        if kind.startswith("list["):
            return type(value) is list and all(self._is(kind[5:-1], each) for each in value)
        if kind.startswith("dict["):
            key, inner = _split(kind[5:-1])
            return type(value) is dict and all(self._is(key, a) and self._is(inner, b) for a, b in value.items())
        return kind == "object" or self._is_bound(kind, value)  # an object is a tensor: see describe

    def _is_bound(self, kind: str, value: Any) -> bool:
        bound = self._module
        for part in kind.split(".")[1:]:
            bound = getattr(bound, part, None)
        if bound is self._module.CacheBlockIds:
            return self._is("list[list[int]]", value)
        return bound is not None and (isinstance(value, bound) or same_fields(bound, value))


def same_fields(bound: type, value: Any) -> bool:
    """A result that is read by the names of its fields."""
    fields = [name for name, each in vars(bound).items() if isinstance(each, property)]
    return bool(fields) and all(hasattr(value, name) for name in fields)


def shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return f"{type(value).__name__} of {shown(value[0])}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def declared(kind: type, module: Any) -> dict[str, Declared]:
    """The methods of a bound class that have one signature."""
    found = {}
    for name in dir(kind):
        (signature, *more) = getattr(inspect.getattr_static(kind, name), "__nb_signature__", ((None,),))
        if signature[0] is not None and not more and not name.startswith("_"):
            found[name] = Declared(name, signature[0], module)
    return found


def describe(tensor: Any) -> tuple[Any, ...]:
    """Two tensors that upstream reads alike must share this."""
    return type(tensor), tensor.dtype, tensor.device.type, tensor.dim()


def watched(own: Any, declaration: Declared, called: Callable[[str, list[str]], None]) -> Any:
    """The method, whose every call is held against its declaration."""

    def call(self: Any, *given: Any, **named: Any) -> Any:
        result = own(self, *given, **named)
        called(declaration.name, declaration.objections(given, named, result))
        return result

    return call


def _split(arguments: str) -> list[str]:
    """Splits at commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _name_of(argument: str) -> str:
    return argument.partition(":")[0]


def _kind_of(argument: str) -> str:
    return argument.partition(": ")[2].partition(" = ")[0]
