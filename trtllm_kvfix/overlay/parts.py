"""Points of upstream that we replace without fixing anything: the gate, the configuration, a failed load.

They are installed once for each owner, shown by `status` beside the fixes, and taken back with them.
"""

from collections.abc import Iterable
from typing import Any

from trtllm_kvfix.forks import ForkedLock
from trtllm_kvfix.overlay import seam
from trtllm_kvfix.overlay.fix import Replacement

_lock = ForkedLock()
_installed: list[seam.Installed] = []


def install(name: str, replacements: Iterable[Replacement]) -> None:
    """Install all parts or none. Parts that are installed already stay as they are; a module that was loaded again has
    lost its part."""
    with _lock():
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
    """Take the parts back, the last first. Returns the seams that another tool has replaced since."""
    with _lock():
        left = [str(each.seam) for each in reversed(_installed) if not each.restore()]
        _installed.clear()
        return left


def seams() -> dict[str, str]:
    """Each replaced attribute and the hash of what was there."""
    with _lock():
        return {str(each.seam): each.fingerprint for each in _installed if each.is_current()}


def displaced(live: Iterable[Any]) -> dict[str, str]:
    """Parts that upstream's calls do not come to any more, each with what they come to instead."""
    with _lock():
        return {str(each.seam): by for each, by in seam.displaced(_installed, live)}
