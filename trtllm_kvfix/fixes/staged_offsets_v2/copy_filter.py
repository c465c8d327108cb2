"""What upstream records of launches that this fix did not make is not trusted.

The newest source skips a launch whose payload equals the last one that it recorded for the same tensor. A launch that
this fix did not make may have arrived torn, and is recorded as it was meant: upstream then skips the launches that
would mend it, until the table changes (H10). So upstream forgets its record of a tensor when the first call for it
comes. Later, another tool may have taken the place of the fix's launch; then nothing is recorded of the tensors that
are the fix's.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from trtllm_kvfix.native import OffsetLaunch
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.upstream import STEP_PROLOGUE_TRIM, V2_PLACES

FILTER = "GLOBAL_COPY_FILTER"
RECORD = "UnchangedCopyFilter.record"


class CopyFilter:
    """Upstream's filter, as far as this fix has to do with it."""

    def __init__(self, tried: Fuse) -> None:
        self._tried = tried
        self._launches: list[OffsetLaunch] = []
        # By filter: its module may be loaded again, and a manager's module may go on with the old one. Addresses of
        # tensors: a record keeps its tensor's memory, so one from before the fix has no other's address.
        self._forgotten: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()

    def forget(self, output: Any) -> None:
        """Call before upstream asks whether a launch to this tensor can be skipped."""
        address = output.data_ptr()
        self._take_launch(address)
        for each in _filters():
            forgotten = self._forgotten.setdefault(each, set())
            if address not in forgotten:
                each.invalidate(output)
                forgotten.add(address)

    def launching(self, make: Callable[..., OffsetLaunch]) -> Callable[..., OffsetLaunch]:
        """The fix's launch, which says to which tensor it launched last."""

        def made(original: Callable[..., Any]) -> OffsetLaunch:
            launch = make(original)
            self._launches.append(launch)
            return launch

        return made

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`UnchangedCopyFilter.record`."""

        def record(filter: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(filter, dst, *args, **kwargs)
            try:
                self._distrust(filter, dst)
            except Exception as error:
                self._tried.fault(error)
            return result

        return record

    def _distrust(self, filter: Any, dst: Any) -> None:
        address = dst.data_ptr()
        if not self._take_launch(address) and address in self._forgotten.get(filter, ()):
            filter.invalidate(dst)

    def _take_launch(self, address: int) -> bool:
        """Whether the fix has launched to this tensor, and nobody has asked since."""
        taken = [each.take_launch(address) for each in self._launches]  # of all: none may keep it
        return any(taken)


def _filters() -> Iterator[Any]:
    """Those that a manager may ask."""
    for name in (STEP_PROLOGUE_TRIM, *V2_PLACES):
        found = getattr(sys.modules.get(name), FILTER, None)
        if found is not None:
            yield found
