"""A class's name means one thing in the whole package."""

import ast
from collections import defaultdict
from collections.abc import Mapping

from tests.layers import PACKAGE, ROOT


def defined_twice(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of classes that several modules define, each with the modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_no_two_modules_define_a_class_of_one_name() -> None:
    files = [file for ending in ("py", "pyi") for file in (ROOT / PACKAGE).rglob(f"*.{ending}")]
    twice = defined_twice({file.relative_to(ROOT).as_posix(): file.read_text() for file in files})
    assert not twice, f"say by its name what each of them is: {twice}"


def test_a_name_that_two_modules_define_is_seen() -> None:
    assert defined_twice({"a.py": "class Step: ...", "b.py": "class Step: ..."}) == {"Step": ["a.py", "b.py"]}
    assert defined_twice({"a.py": "class Step: ...", "b.py": "def step():\n    class Step: ...\n"}) == {}
