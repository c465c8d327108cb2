"""Stream-to-stream order between transfers and the rest; the CPU waits for nothing (surface 4.4). Not bound in A."""

from .core import BoundCore


def sync_transfer_manager_with_buffer_manager(self: BoundCore) -> None:
    """Transfers come after what the BufferManager's stream holds so far."""
    self._transfer_stream.wait_stream(self._buffer_stream)


def refresh_blocks(self: BoundCore) -> None:
    """The BufferManager's stream comes after the transfers: this is what sits in front of a step's input copies."""
    self.native.refresh_blocks()
    if self._transfers_pending:
        self._buffer_stream.wait_event(self._transferred)
        self._transfers_pending = False
