"""What upstream recorded of launches from before this fix is not trusted.

The newest source skips a launch whose payload equals the last one that it recorded for the same tensor. A launch that
this fix did not make may have arrived torn, and is recorded as it was meant: upstream then skips the launches that
would mend it, until the table changes (H10). So upstream forgets its record of a tensor when the first call for it
comes.
"""

import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from trtllm_kvfix.overlay.upstream import STEP_PROLOGUE_TRIM, V2_PLACES

FILTER = "GLOBAL_COPY_FILTER"


class CopyFilter:
    """Upstream's filter, as far as this fix has to do with it."""

    def __init__(self) -> None:
        # By filter: its module may be loaded again, and a manager's module may go on with the old one. Addresses of
        # tensors: a record keeps its tensor's memory, so one from before the fix has no other's address.
        self._forgotten: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()

    def forget(self, output: Any) -> None:
        """Call before upstream asks whether a launch to this tensor can be skipped."""
        address = output.data_ptr()
        for each in _filters():
            forgotten = self._forgotten.setdefault(each, set())
            if address not in forgotten:
                each.invalidate(output)
                forgotten.add(address)


def _filters() -> Iterator[Any]:
    """Those that a manager may ask."""
    for name in (STEP_PROLOGUE_TRIM, *V2_PLACES):
        found = getattr(sys.modules.get(name), FILTER, None)
        if found is not None:
            yield found
