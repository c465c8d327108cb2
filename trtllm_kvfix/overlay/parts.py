"""Points of upstream at which we take part without mending anything: the gate, the configuration, a failed load.

They are installed once for each owner, shown by `status` beside the fixes, and taken back with them.
"""

import threading
from collections.abc import Iterable

from trtllm_kvfix.overlay import seam
from trtllm_kvfix.overlay.fix import Replacement

_lock = threading.RLock()
_installed: list[seam.Installed] = []


def install(name: str, replacements: Iterable[Replacement]) -> None:
    """All of them or none. What is there already stays as it is; a module that was loaded again has lost it."""
    with _lock:
        _installed[:] = [each for each in _installed if each.still_ours()]
        here = {(each.fix_id, each.seam) for each in _installed}
        new: list[seam.Installed] = []
        try:
            for replacement in replacements:
                if (name, replacement.seam) not in here:
                    new += [seam.install(replacement, name)]
        except Exception:
            for each in reversed(new):
                each.restore()
            raise
        _installed.extend(new)


def revert() -> list[str]:
    """The last first. Returns the seams that somebody else has replaced since."""
    with _lock:
        left = [str(each.seam) for each in reversed(_installed) if not each.restore()]
        _installed.clear()
        return left


def seams() -> dict[str, str]:
    """Each replaced attribute and the hash of what was there."""
    with _lock:
        return {str(each.seam): each.fingerprint for each in _installed if each.is_current()}


def lost() -> list[str]:
    with _lock:
        return [str(each.seam) for each in _installed if not each.still_ours()]
