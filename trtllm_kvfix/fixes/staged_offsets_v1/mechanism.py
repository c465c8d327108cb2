"""V1 block offsets: upstream fills its persistent table as before, and this fix stages what it would copy from there
(H1).

Upstream's own code runs, with a destination of ours in the place of the device tensor. So whatever a version does about
beams, cross attention or widths stays as it is, and only these statements change their meaning:

    dst[pool, :num_seqs].copy_(table[pool, :num_seqs], non_blocking=True)  # reads the table when the stream gets there

Where our own code fails, the same statement copies before it returns. A fix that stands down does the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from trtllm_kvfix.fixes.staged_offsets_v1.destination import BlockingDestination, StagedDestination
from trtllm_kvfix.fixes.waits import finish
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.staging.read_back import ReadBack
from trtllm_kvfix.staging.stagers import Stagers

ID = "staged-offsets-v1"

# On the owner of a table: what it has shipped to, by the identity of the tensor. Goes with the owner.
SHIPPED_TO = "_kvfix_shipped_to"


def staged_copy(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets` of a manager that owns its table. What follows `dst_tensor` is upstream's business.

    Only this method fills the table, so the table is lent to the copy until the method is called again.
    """
    tried = fuse.of(ID)

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        faults = tried.faults
        destination = None
        if not tried.blown:
            try:
                destination = _destination(
                    self, dst_tensor, self.host_kv_cache_block_offsets, stagers, tried, lends=True
                )
            except Exception as error:
                tried.fault(error)
        if destination is None:
            _take_back(self)
            return original(self, BlockingDestination(dst_tensor), *args, **kwargs)
        result = original(self, destination, *args, **kwargs)
        _finish_call(destination, tried, faults)
        return result

    return copy_batch_block_offsets


def staged_prepare(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """`prepare` of attention metadata that owns the table and the copy, as upstream had it before the manager did."""
    tried = fuse.of(ID)

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        faults = tried.faults
        tensor = getattr(self, "kv_cache_block_offsets", None)
        table = getattr(self, "host_kv_cache_block_offsets", None)
        if tensor is None or table is None:
            return original(self, *args, **kwargs)
        destination: StagedDestination | BlockingDestination = BlockingDestination(tensor)
        if not tried.blown:
            try:
                destination = _destination(self, tensor, table, stagers, tried, lends=False)
            except Exception as error:
                tried.fault(error)
        self.kv_cache_block_offsets = destination
        try:
            result = original(self, *args, **kwargs)
        finally:
            # A prepare that put another tensor there meant it.
            if self.kv_cache_block_offsets is destination:
                self.kv_cache_block_offsets = tensor
        if isinstance(destination, StagedDestination):
            _finish_call(destination, tried, faults)
        return result

    return prepare


def _destination(
    owner: Any, tensor: Any, table: Any, stagers: Stagers, tried: fuse.Fuse, *, lends: bool
) -> StagedDestination:
    """With the table ready to be filled."""
    known: dict[int, StagedDestination] = vars(owner).setdefault(SHIPPED_TO, {})
    found = known.get(id(tensor))
    if found is None or found.tensor is not tensor or found.table is not table or found.stagers is not stagers:
        found = known[id(tensor)] = StagedDestination(tensor, table, stagers, tried, lends=lends)
    found.begin()
    return found


def _finish_call(destination: StagedDestination, tried: fuse.Fuse, faults_before: int) -> None:
    """Upstream's method has returned: ship what it left, and note whether the call succeeded."""
    if destination.parts:
        if not destination.failed:
            try:
                destination.flush()
            except Exception as error:
                tried.fault(error)
        destination.copy_rest()
    if tried.faults == faults_before:
        tried.in_a_row = 0


def _take_back(owner: Any) -> None:
    """The table is about to be filled without us, so no copy may still read what an earlier call has lent. A kernel on
    the stream of that call follows each such copy."""
    try:
        for destination in vars(owner).get(SHIPPED_TO, {}).values():
            destination.settle()
    except Exception:
        finish()


class StagedOffsetsV1:
    """The replacements, sharing their stagers."""

    def __init__(self, *, mode: str = "auto", slots: int = 3, read_back_every: int = 0) -> None:
        read_back = ReadBack(ID, read_back_every) if read_back_every else None
        stagers = Stagers(mode=mode, slots=slots, read_back=read_back)
        self.copy_batch_block_offsets = partial(staged_copy, stagers)
        self.prepare = partial(staged_prepare, stagers)
