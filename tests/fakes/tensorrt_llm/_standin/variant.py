"""Which upstream this process pretends to have installed (surface 0). "mangled" is C with seams that nobody knows."""

import os

ORDER = ("A", "B", "C", "D", "F")
NAMES = (*ORDER, "mangled")

# Workers get no variable that does not begin with TRTLLM or TLLM (surface 7.2).
VARIABLE_FOR_WORKERS = "TLLM_STANDIN_VARIANT"

NAME = os.environ.get("FAKE_TRTLLM_VARIANT") or os.environ.get(VARIABLE_FOR_WORKERS) or "B"
if NAME not in NAMES:
    raise ImportError(f"FAKE_TRTLLM_VARIANT is {NAME!r}; the stand-in knows {', '.join(NAMES)}")

MANGLED = NAME == "mangled"
_BASE = "C" if MANGLED else NAME

# The fork that shares its host tier with other machines: pins by block, from threads of its own (surface 7.3).
REMOTE_G2 = _BASE == "C"


def since(name: str) -> bool:
    """Whether the variant is `name` or a later one."""
    return ORDER.index(_BASE) >= ORDER.index(name)


def before(name: str) -> bool:
    return not since(name)


def only_if(exists: bool, module: str) -> None:
    """Upstream moved files about: one that this variant does not have fails to import as if it were not there."""
    if not exists:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
