"""Stream-to-stream order between transfers and the rest; the CPU waits for nothing (surface 4.4)."""

from ..nanobind import bound
from .core import BoundCore


@bound
def sync_transfer_manager_with_buffer_manager(self: BoundCore) -> None:
    """Transfers come after what the BufferManager's stream holds so far."""
    self._pools.transfers_follow_buffers()


@bound
def refresh_blocks(self: BoundCore) -> None:
    """The BufferManager's stream comes after the transfers: this is what sits in front of a step's input copies."""
    self.native.refresh_blocks()
    self._pools.buffers_follow_transfers()
