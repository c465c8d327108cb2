"""The copies that the books ask for, in stream order between the steps, and the tickets that end them.

Copies run on the stream of the model, behind the kernels that wrote their sources and before the kernels that read
their destinations. A ticket ends at fixed points, which are the same on every rank, and never because a rank finds its
copies done: a block is usable on all ranks in the same iteration, or on none.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from trtllm_kvfix.managers.memory import Memory, Spans
from trtllm_kvfix.native import BlockManager, CopyEngine, Device, DeviceError, RequestBooks, TransferItem
from trtllm_kvfix.staging import current_place

TRANSFERS_MAX = 256  # groups of copies in flight; one more waits for the oldest


class BookedCopies:
    """The caller holds a lock around every call."""

    def __init__(self, core: BlockManager, requests: RequestBooks, device: Device, memory: Memory, stream: int) -> None:
        self._core = core
        self._requests = requests
        self._device = device
        self._memory = memory
        self._stream = stream
        self._engine = CopyEngine(device, transfers_max=TRANSFERS_MAX)
        self._reached = device.create_event()
        self._pending: deque[tuple[int, list[int]]] = deque()  # ticket, transfers of the engine
        self.on_submit: Callable[[Sequence[TransferItem]], None] | None = None  # it raises nothing

    def submit(self) -> None:
        """Submit what admission and growth have queued, before the step that needs it is enqueued."""
        batch = self._core.take_transfers()
        if not batch.ticket:
            return
        if self.on_submit is not None:
            self.on_submit(batch.items)
        transfers: list[int] = []
        try:
            # Callers may run the model on the stream that is current: the copies are ordered against both.
            current = current_place().stream
            self._device.record(self._reached, current)
            for spans in self._memory.waves(batch.items):
                transfers.append(self._send(spans, current))  # noqa: PERF401  those before a failure count
        except Exception as error:
            self._wait_out(transfers)
            self._fail(batch.ticket, error)
            if not isinstance(error, DeviceError):
                raise
        else:
            self._pending.append((batch.ticket, transfers))

    def end(self) -> None:
        """Wait for everything queued. Raises if a request's blocks did not arrive: its answer would be wrong."""
        if self._requests.may_have_copies():
            self.submit()  # what a batch queued before it failed
        while self._pending:
            ticket, transfers = self._pending.popleft()
            try:
                for each in transfers:
                    self._engine.wait(each)
            except DeviceError as error:
                self._wait_out(transfers)
                self._fail(ticket, error)
            else:
                self._core.complete(ticket)

    def _send(self, spans: Spans, current: int) -> int:
        return self._engine.submit(
            spans.dst, spans.src, spans.nbytes, after=self._reached, before=current, stream=self._stream
        )

    def _wait_out(self, transfers: list[int]) -> None:
        """Called before their slots are given away."""
        for each in transfers:
            with suppress(DeviceError):
                self._engine.wait(each)

    def _fail(self, ticket: int, error: Exception) -> None:
        """Blocks without an owner are forgotten; a request that owns one cannot go on."""
        losers = self._core.fail(ticket)
        if losers:
            raise RuntimeError(f"copies of KV-cache blocks failed for requests {losers}: {error}") from error

    def close(self) -> None:
        """After this call, neither our copies nor any step that was enqueued before use the memory."""
        with suppress(RuntimeError):  # of copies that failed: their requests have ended with the server
            self._device.synchronize(self._stream)
            self.end()
        self._device.destroy_event(self._reached)
