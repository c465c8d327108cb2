"""One attribute of upstream: put something in its place, see whether that is still there, put it back."""

import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import described
from trtllm_kvfix.overlay import reach
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PACKAGE


class SeamError(KvfixError):
    """A seam is not where the fix expects it, or cannot be replaced."""


class _Missing:
    def __repr__(self) -> str:
        return "absent"


MISSING = _Missing()


@dataclass(frozen=True)
class Installed:
    """A replacement in its seam. `before` is the owner's own attribute: MISSING where it inherited one, or had none."""

    seam: Seam
    by: str  # the id of a fix, or the name of what else replaces it
    owner: Any  # a module or a class
    name: str
    before: Any
    after: Any
    original: Any  # the attribute before any fix of ours, inherited or not; None where there was none
    fingerprint: str  # of `original`
    code: CodeType | None  # of ours; a tool may change a function and leave it in its place

    def is_current(self) -> bool:
        """Whether upstream still uses the owner that was changed: a module that is loaded again makes new classes."""
        try:
            return _owner(self.seam)[0] is self.owner
        except SeamError:
            return False

    def still_ours(self) -> bool:
        return self.is_current() and vars(self.owner).get(self.name, MISSING) is self.after

    def displaced_by(self) -> str:
        """What upstream's own calls come to instead of ours; nothing where they come to ours, through wrappers or
        not."""
        try:
            owner, name = _owner(self.seam)
        except SeamError as error:
            return str(error)
        found = inspect.getattr_static(owner, name, MISSING)
        if _code(self.after) is not self.code:
            return f"{reach.described(self.after)}, code that was put into ours"
        if found is self.after or reach.reaches(found, self.after):
            return ""
        back = ", upstream's own, put back" if reach.plain(found) is self.original else ""
        return f"{reach.described(found)}{back}"

    def displaced_on(self, one: Any) -> str:
        """The same for an object of upstream's that lives: it may have the attribute itself, or be of a class of
        somebody else's that has it. Upstream's derived classes may have one of their own."""
        if not any(kind is self.owner for kind in reach.mro(type(one))) or not callable(reach.plain(self.after)):
            return ""
        own = reach.attributes(one).get(self.name, MISSING)
        found = inspect.getattr_static(type(one), self.name, MISSING) if own is MISSING else own
        if found is self.after or found is MISSING or reach.reaches(found, self.after):
            return ""
        if own is MISSING and _module_of(found).split(".")[0] == PACKAGE:
            return ""
        return f"{reach.described(found)}, on {type(one).__module__}.{type(one).__qualname__}"

    def restore(self) -> bool:
        """Put the original back. If another tool has replaced our replacement, leave theirs and return False."""
        if vars(self.owner).get(self.name, MISSING) is not self.after:
            return False
        if self.before is MISSING:
            delattr(self.owner, self.name)  # setting the inherited attribute would leave a shadow of it
        else:
            setattr(self.owner, self.name, self.before)
        return True


def install(replacement: Replacement, by: str) -> Installed:
    seam = replacement.seam
    owner, name = _owner(seam)
    before = vars(owner).get(name, MISSING)
    raw = before if before is not MISSING else inspect.getattr_static(owner, name, None)
    found, wrap = _unwrapped(raw)
    made = replacement.make(found)
    if made is None or made is found:
        raise SeamError(f"{by} did not change {seam}: it made {made!r} of {found!r}")
    original = getattr(found, "__kvfix_original__", found)
    _mark(made, found, original, by)
    after = wrap(made)
    try:
        setattr(owner, name, after)
    except (AttributeError, TypeError) as error:
        raise SeamError(f"{by} cannot replace {seam}: {error}; the class may be compiled") from error
    return Installed(seam, by, owner, name, before, after, original, fingerprint(original), _code(after))


def fingerprint(original: Any) -> str:
    """Short hash of what a fix replaces, equal in every process that runs the same upstream."""
    if original is None:
        return "absent"
    subject = inspect.unwrap(original) if callable(original) else original
    if isinstance(subject, property):
        subject = subject.fget
    with suppress(OSError, TypeError):
        return _hashed("source", textwrap.dedent(inspect.getsource(subject)))
    code = getattr(subject, "__code__", None)
    if code is not None:
        return _hashed("bytecode", _spelt_out(code))
    # Bound functions of an extension have their signature in their documentation.
    return _hashed("signature", f"{type(subject).__name__} {getattr(subject, '__doc__', None)}")


def aliases(installed: Iterable[Installed]) -> list[str]:
    """Names elsewhere in upstream that still hold an original, because `from x import y` took it before.

    Calls through one of them run without the fix. The place where it was defined does not count. One walk over
    upstream, whatever the number of seams.
    """
    replaced = {id(each.original): each for each in installed if each.original is not None}
    found = []
    for where, owner in _namespaces():
        for name, value in list(vars(owner).items()):
            seam = replaced.get(id(_unwrapped(value)[0]))
            if seam is None or (owner is seam.owner and name == seam.name):
                continue
            if f"{where}.{name}" != _home(seam.original):
                found.append(f"{where}.{name}")
    return sorted(found)


def holders(original: Any) -> list[tuple[str, str]]:
    """(module, name) of upstream's modules that hold it, including those that are still being imported."""
    return [
        (module_name, name)
        for module_name, owner in list(_namespaces())
        if isinstance(owner, ModuleType)
        for name, value in list(vars(owner).items())
        if value is original
    ]


def give_back(installed: Iterable[Installed]) -> None:
    """Modules that took a replacement by `from x import y` after it was installed get the original."""
    originals = {id(each.after): each.original for each in installed if isinstance(each.owner, ModuleType)}
    for _, owner in _namespaces():
        if isinstance(owner, ModuleType):
            for name, value in list(vars(owner).items()):
                if originals.get(id(value)) is not None:
                    setattr(owner, name, originals[id(value)])


def _owner(seam: Seam) -> tuple[Any, str]:
    """The module or class that the attribute hangs on. The attribute itself may be absent, its owner may not."""
    owner: Any = sys.modules.get(seam.module)
    if owner is None:
        raise SeamError(f"{seam}: module {seam.module} is not imported; name it in the fix's triggers")
    *path, name = seam.path.split(".")
    for part in path:
        if not hasattr(owner, part):
            raise SeamError(f"{seam}: {getattr(owner, '__name__', owner)} has no {part}; upstream may have moved it")
        owner = getattr(owner, part)
    return owner, name


def displaced(installed: Iterable[Installed], live: Iterable[Any]) -> Iterator[tuple[Installed, str]]:
    """Replacements that upstream's calls do not come to any more, each with what they come to instead. `live`: objects
    of a running engine."""
    installed = list(installed)
    owners = {id(each.owner) for each in installed}
    objects = [one for one in live if any(id(kind) in owners for kind in reach.mro(type(one)))]
    for each in installed:
        try:
            by = each.displaced_by() or next(filter(None, map(each.displaced_on, objects)), "")
        except Exception as error:  # an object of somebody else's, which may do anything
            by = f"what cannot be looked at ({described(error)})"
        if by:
            yield each, by


def _code(replacement: Any) -> CodeType | None:
    return getattr(reach.plain(replacement), "__code__", None)


def _module_of(found: Any) -> str:
    return str(getattr(reach.plain(found), "__module__", ""))


def _home(original: Any) -> str:
    """Module and name under which it was defined."""
    return f"{getattr(original, '__module__', None)}.{getattr(original, '__qualname__', None)}"


def _unwrapped(raw: Any) -> tuple[Any, Callable[[Any], Any]]:
    if isinstance(raw, staticmethod):
        return raw.__func__, staticmethod
    if isinstance(raw, classmethod):
        return raw.__func__, classmethod
    return raw, lambda made: made


def is_marked(function: Any, by: str) -> bool:
    """Whether a replacement of this fix is called through the function, also behind what others have put around it."""
    while function is not None and getattr(function, "__kvfix_fix__", None) != by:
        function = getattr(function, "__wrapped__", None)
    return function is not None


def _mark(made: Any, found: Any, original: Any, by: str) -> None:
    if isinstance(made, FunctionType) and callable(found):
        functools.update_wrapper(made, found)
    elif not isinstance(found, type) and callable(made) and callable(found):  # not a function: without found's marks
        with suppress(AttributeError, TypeError):
            functools.update_wrapper(made, found, updated=())
    with suppress(AttributeError, TypeError):  # properties and slots take no marks; still_ours() needs none
        made.__kvfix_original__ = original
        made.__kvfix_fix__ = by


def _hashed(kind: str, text: str) -> str:
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _spelt_out(constant: Any) -> str:
    """A code object with those inside it, without addresses, and sets in an order that no hash seed changes."""
    if isinstance(constant, CodeType):
        return f"{constant.co_code.hex()} {constant.co_names} {[_spelt_out(each) for each in constant.co_consts]}"
    if isinstance(constant, frozenset):
        return repr(sorted(map(repr, constant)))
    return repr(constant)


def _namespaces() -> Iterator[tuple[str, ModuleType | type]]:
    """Upstream's modules, and the classes that each of them defines."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] != PACKAGE or not hasattr(module, "__dict__"):
            continue
        yield module_name, module
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module_name:
                yield f"{module_name}.{name}", value
