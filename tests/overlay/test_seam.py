"""One attribute: found, replaced, marked, recognised, put back."""

import sys
from types import ModuleType
from typing import Any

import pytest

from tests.overlay.upstream_double import ROOT, python
from trtllm_kvfix.overlay import seam
from trtllm_kvfix.overlay.fix import Replacement, Seam

NAME = "tensorrt_llm.seams_under_test"
SOURCE = '''
class Base:
    def inherited(self):
        return "base"

class Manager(Base):
    def method(self, first, second=2):
        """What it does."""
        return first

    @staticmethod
    def static(value):
        return value

    @classmethod
    def build(cls, value):
        return cls, value

    @property
    def size(self):
        return 1

def function():
    return "upstream"
'''


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ModuleType(NAME)
    exec(SOURCE, vars(made))
    monkeypatch.setitem(sys.modules, NAME, made)
    return made


def install(path: str, make: Any) -> seam.Installed:
    return seam.install(Replacement(Seam(NAME, path), make), "a-fix")


def test_method_keeps_its_name_documentation_and_signature(module: Any) -> None:
    original = module.Manager.method
    install("Manager.method", lambda found: lambda self, *rest: ("ours", found(self, *rest)))
    method = module.Manager.method
    assert module.Manager().method(7) == ("ours", 7)
    assert (method.__name__, method.__doc__, method.__wrapped__) == ("method", "What it does.", original)
    assert (method.__kvfix_original__, method.__kvfix_fix__) == (original, "a-fix")


def test_static_and_class_methods_stay_what_they_are(module: Any) -> None:
    install("Manager.static", lambda found: lambda value: ("ours", found(value)))
    install("Manager.build", lambda found: lambda cls, value: ("ours", *found(cls, value)))
    assert module.Manager.static(1) == module.Manager().static(1) == ("ours", 1)
    assert module.Manager.build(1) == ("ours", module.Manager, 1)


def test_property_can_be_replaced(module: Any) -> None:
    installed = install("Manager.size", lambda found: property(lambda self: found.fget(self) + 1))
    assert module.Manager().size == 2
    assert installed.restore()
    assert module.Manager().size == 1


def test_inherited_method_is_restored_without_leaving_a_shadow(module: Any) -> None:
    installed = install("Manager.inherited", lambda found: lambda self: "ours " + found(self))
    assert (module.Manager().inherited(), module.Base().inherited()) == ("ours base", "base")
    assert installed.restore()
    assert "inherited" not in vars(module.Manager)


def test_absent_attribute_is_offered_as_none_and_deleted_again(module: Any) -> None:
    seen = []

    def make(found: Any) -> Any:
        seen.append(found)
        return lambda _self: "new"

    installed = install("Manager.added", make)
    assert (seen, module.Manager().added(), installed.fingerprint) == ([None], "new", "absent")
    assert installed.restore()
    assert not hasattr(module.Manager, "added")


def test_what_somebody_else_put_there_since_is_left(module: Any) -> None:
    installed = install("Manager.method", lambda _found: lambda _self: "ours")
    theirs = module.Manager.method = lambda _self: "theirs"
    assert not installed.still_ours()
    assert not installed.restore()
    assert module.Manager.method is theirs


def test_second_fix_in_a_seam_stands_around_the_first_and_knows_upstreams_original(module: Any) -> None:
    original = module.function
    first = install("function", lambda found: lambda: "first " + found())
    second = install("function", lambda found: lambda: "second " + found())
    assert module.function() == "second first upstream"
    assert first.original is second.original is original
    assert first.fingerprint == second.fingerprint
    assert second.restore() and first.restore()
    assert module.function is original


@pytest.mark.parametrize(
    ("seam_path", "make", "message"),
    [
        ("Manager.method", lambda found: found, "did not change"),
        ("Manager.method", lambda _found: None, "did not change"),
        ("Gone.method", lambda _found: lambda: None, "has no Gone; upstream may have moved it"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_replacement_that_cannot_be_is_refused(seam_path: str, make: Any, message: str) -> None:
    with pytest.raises(seam.SeamError, match=message):
        install(seam_path, make)


def test_seam_in_a_module_that_is_not_imported_is_refused() -> None:
    with pytest.raises(seam.SeamError, match="name it in the fix's triggers"):
        seam.install(Replacement(Seam("tensorrt_llm.absent", "function"), lambda _found: lambda: None), "a-fix")


def test_class_that_takes_no_attributes_is_refused_and_unchanged(module: Any) -> None:
    module.Compiled = int
    with pytest.raises(seam.SeamError, match="the class may be compiled"):
        install("Compiled.bit_length", lambda _found: lambda _self: 0)


def test_fingerprint_tells_code_apart_and_not_processes(module: Any) -> None:
    other = ModuleType(NAME)
    exec(SOURCE, vars(other))
    changed = ModuleType(NAME)
    exec(SOURCE.replace("return first", "return second"), vars(changed))
    assert seam.fingerprint(module.Manager.method) == seam.fingerprint(other.Manager.method)
    assert seam.fingerprint(module.Manager.method) != seam.fingerprint(changed.Manager.method)
    assert seam.fingerprint(module.Manager.method).startswith("bytecode:")
    assert seam.fingerprint(install).startswith("source:")
    assert seam.fingerprint(int.bit_length).startswith("signature:")
    assert seam.fingerprint(int.bit_length) != seam.fingerprint(int.to_bytes)


def test_fingerprint_covers_nested_functions() -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    for value, space in enumerate(spaces):
        exec(f"def outer():\n    def inner():\n        return {value}\n    return inner\n", space)
    assert seam.fingerprint(spaces[0]["outer"]) != seam.fingerprint(spaces[1]["outer"])


def test_fingerprint_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from trtllm_kvfix.overlay import seam\n"
        'text = \'def function(x): return x in {"one", "two", "three", "four", "five"}\'\n'
        "space = {}; exec(compile(text, 'made', 'exec'), space)\n"
        "print(seam.fingerprint(space['function']))"
    )
    found = {python(ROOT, code, PYTHONHASHSEED=str(seed)).stdout for seed in range(4)}
    assert len(found) == 1
    assert found.pop().startswith("bytecode:")


def test_names_that_still_are_the_original_are_listed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    user = ModuleType("tensorrt_llm.user_under_test")
    monkeypatch.setitem(sys.modules, user.__name__, user)
    members = {"kept": staticmethod(module.function), "__module__": user.__name__}
    vars(user).update(taken=module.function, Holder=type("Holder", (), members))
    installed = install("function", lambda _found: lambda: "ours")
    assert seam.aliases([installed]) == [f"{user.__name__}.Holder.kept", f"{user.__name__}.taken"]
    vars(user).update(taken=module.function, Holder=None)
    assert seam.aliases([installed]) == []


def test_the_place_where_it_is_defined_is_no_alias(module: Any) -> None:
    """A method that a class inherits is replaced on that class only; others still have it from where it is defined."""
    module.Base.inherited.__module__ = NAME
    module.Base.__module__ = module.Manager.__module__ = NAME
    installed = install("Manager.inherited", lambda _found: lambda _self: "ours")
    assert seam.aliases([installed]) == []
    module.other_name = module.Base.inherited
    assert seam.aliases([installed]) == [f"{NAME}.other_name"]
