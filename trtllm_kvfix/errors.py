"""The exceptions of this package. Those of the extension are found here too, and load it only when asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtllm_kvfix.native import BlockInFlight, InvariantViolation, OutOfBlocks, UnknownRequest

__all__ = [
    "EXIT_INTERRUPTED",
    "BlockInFlight",
    "ExtensionMissing",
    "InvariantViolation",
    "KvfixError",
    "NotServed",
    "OutOfBlocks",
    "SettingsError",
    "UnknownRequest",
]

_NATIVE = ("BlockInFlight", "InvariantViolation", "OutOfBlocks", "UnknownRequest")

EXIT_INTERRUPTED = 130  # of a command that Ctrl-C has ended, as shells have it


class KvfixError(Exception):
    """An error that the command line reports as one line, ending with `exit_code`."""

    exit_code = 1


class SettingsError(KvfixError):
    """A setting has an unknown name or a value that cannot be used."""

    exit_code = 2


class NotServed(KvfixError, RuntimeError):
    """`kvfix.manager: native` does not serve what this engine asks for. The text names it."""

    exit_code = 2


class ExtensionMissing(KvfixError, ImportError):
    """The native extension is not there, or was built for another interpreter."""


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        from trtllm_kvfix import native  # noqa: PLC0415  importing it here is what keeps this module free of native code

        return getattr(native, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
