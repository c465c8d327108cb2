"""A loop of the rig that ends for want of an excerpt has shown no hazard (integration/upstream)."""

from pathlib import Path
from types import ModuleType

import pytest

from integration.upstream import fallbacks


class OurMethods:
    lenient = fallbacks.strict

    def __init__(self) -> None:
        pass


def completed(folder: Path) -> type:
    place = folder / "manager.py"
    place.write_text("class Manager:\n    def free(self):\n        return self._hooks()\n", encoding="utf-8")
    module = ModuleType("manager")
    module.__file__ = str(place)
    exec(place.read_text(encoding="utf-8"), vars(module))
    fallbacks.complete(module, "Manager", OurMethods)
    found: type = vars(module)["Manager"]
    return found


def test_a_method_that_no_excerpt_holds_ends_a_loop_by_name(tmp_path: Path) -> None:
    manager = completed(tmp_path)()
    with pytest.raises(fallbacks.NotAmongExcerpts, match="_hooks") as raised:
        manager.free()
    assert fallbacks.is_unread(f"{type(raised.value).__name__}: {raised.value}")
    assert getattr(manager, "_window", None) is None


@pytest.mark.parametrize(
    ("died", "unread"),
    [
        ("TypeError: 'Double' object is not subscriptable", True),
        ("", False),
        ("AttributeError: 'NoneType' object has no attribute 'begin'", False),
        ("RuntimeError: no free blocks left", False),
    ],
)
def test_other_ends_are_what_upstream_does(died: str, unread: bool) -> None:
    assert fallbacks.is_unread(died) is unread
