"""How bound names look from Python."""

from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def flat(cls: Class) -> Class:
    """Every public method is an attribute of the class itself, as nanobind defines them."""
    for base in cls.__mro__[1:-1]:  # a derived class before those it overrides
        for name, attribute in vars(base).items():
            if not name.startswith("_") and name not in vars(cls):
                setattr(cls, name, attribute)
    return cls


class NbFunction:
    """What `inspect` sees of a bound function: no signature, but a docstring that begins with one."""

    def __init__(self, function: Callable[..., None], signature: str) -> None:
        self._function = function
        self.__name__ = self.__qualname__ = "copy_batch_block_offsets_to_device"
        self.__module__ = function.__module__
        self.__doc__ = f"{self.__name__}{signature}"

    @property
    def __signature__(self) -> Any:
        raise ValueError(f"no signature found for builtin {self.__name__}")

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._function(*args, **kwargs)
