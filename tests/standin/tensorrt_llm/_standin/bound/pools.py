"""The bytes behind the books: two tiers of blocks, and the streams that copy between them."""

from collections.abc import Iterable

from ..tensors import tensors


class Pools:
    """A few words per token: they give the copies something to copy."""

    WORDS_PER_TOKEN = 4

    def __init__(self, *, tokens_per_block: int, primary: int, secondary: int, stream: int) -> None:
        self._tensors = tensors()
        self._buffer_stream = self._tensors.external_stream(stream)  # the BufferManager's (surface 1.2)
        self._transfer_stream = self._tensors.stream()
        self._transferred = self._tensors.event()
        self._pending = False
        block_shape = tokens_per_block, self.WORDS_PER_TOKEN
        self.primary = self._tensors.on_device(primary, *block_shape)
        self.secondary = self._tensors.pinned(max(1, secondary), *block_shape)

    def run(self, transfers: Iterable[tuple[str, int, int, int]]) -> None:
        """Each a kind, a source, a target, and how many tokens of the block: fewer where it is reused in part."""
        batch = list(transfers)
        if not batch:
            return
        with self._tensors.on(self._transfer_stream):
            for kind, source, target, count in batch:
                dst = self.secondary if kind == "offload" else self.primary
                src = self.secondary if kind == "onboard" else self.primary
                dst[target][:count].copy_(src[source][:count], non_blocking=True)
            self._transferred.record()
        self._pending = True

    def transfers_follow_buffers(self) -> None:
        self._transfer_stream.wait_stream(self._buffer_stream)

    def buffers_follow_transfers(self) -> None:
        """What sits in front of a step's input copies. The CPU waits for nothing (surface 4.4)."""
        if self._pending:
            self._buffer_stream.wait_event(self._transferred)
            self._pending = False

    def close(self) -> None:
        self._transfer_stream.synchronize()
