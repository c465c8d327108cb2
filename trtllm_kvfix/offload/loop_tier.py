"""Both sides of the connector under a loop of our own, on one rank: the calls of upstream's executor, in its order."""

from collections.abc import Callable, Iterable, Sequence
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any, NamedTuple

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import Device, HostPool
from trtllm_kvfix.offload.ledger import Link
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank

WAIT_S_MAX = 30.0
POLL_S = 1e-4


class Scheduled(NamedTuple):
    """One request's part of a step."""

    request: Any
    begin: int  # position
    tokens: int
    blocks: Sequence[int]  # all blocks of the request, in order of position


class Progress(NamedTuple):
    saved: list[int]  # requests that have ended, and whose blocks are no longer in use
    loaded: dict[int, int]  # requests whose load is over, and how far their blocks are filled


class LoopTier:
    """Called by the loop's thread alone.

    `settle` lets the device do the work that it was given. It is called before a wait for a transfer, which may come
    after that work.
    """

    def __init__(
        self, device: Device, pool: Any, tokens_per_block: int, blocks: int, settle: Callable[[], None]
    ) -> None:
        """`pool` says where the device's blocks lie, as without layer groups. `blocks` is the size of the host tier."""
        settings, link = OffloadSettings(), Link()
        self._blocks = blocks
        self._settle = settle
        self._worker = OffloadWorker(settings, link, OneRank(), self._make_pool)
        self._worker.register(device, [pool])
        self._scheduler = OffloadScheduler(settings, tokens_per_block, link, Switches(None))
        self._told: dict[int, tuple[int, int]] = {}  # request -> its tokens and blocks that have been reported
        self._until: dict[int, int] = {}  # request that loads -> the position behind its load
        self._ending: list[int] = []  # requests that the worker side does not know yet
        self._loading: list[int] = []
        self._seen = Progress([], {})
        self.loads = 0  # that are over

    @property
    def stats(self) -> Any:
        """The numbers of the host tier's index."""
        index = self._scheduler.index
        assert index is not None, "the pool was registered with the constructor"
        return index.stats()

    def admitted(self, request: Any, had: int, blocks: Sequence[int]) -> bool:
        """The request has its blocks, which hold `had` of its tokens. True if it must wait for a load of more."""
        tokens, loads = self._scheduler.get_num_new_matched_tokens(request, had)
        self._scheduler.update_state_after_alloc(request, [list(blocks)])
        if loads:
            self._until[request.request_id] = had + tokens
            self._loading.append(request.request_id)
        return loads

    def step(self, scheduled: Iterable[Scheduled], stream: int) -> None:
        """Called before the step's kernels are given to the stream. Earlier work comes before the transfers."""
        new: list[SimpleNamespace] = []
        known: list[SimpleNamespace] = []
        for each in scheduled:
            tokens, at = each.request.get_tokens(0), self._told.get(each.request.request_id)
            (known if at else new).append(self._report(each, tokens, at or (0, 0)))
            self._told[each.request.request_id] = len(tokens), len(each.blocks)
        step = self._scheduler.build_connector_meta(SimpleNamespace(new_requests=new, cached_requests=known))
        if step.fences:
            self._settle()
        self._worker.bind(step)
        self._worker.start(stream)

    def ended(self, request: Any, blocks: Sequence[int]) -> bool:
        """Whether the request must keep its blocks until it is reported as saved."""
        self._told.pop(request.request_id, None)
        keeps = self._scheduler.request_finished(request, [list(blocks)])
        if keeps:
            self._ending.append(request.request_id)
        return keeps

    def over(self, request: Any) -> None:
        """The request's blocks are about to be given away, whatever it was doing."""
        self._settle()
        self._told.pop(request.request_id, None)
        self._until.pop(request.request_id, None)
        self._loading = [each for each in self._loading if each != request.request_id]
        self._seen.loaded.pop(request.request_id, None)
        self._scheduler.request_reset(request)
        self._worker.end_transfers(request.request_id)

    def progress(self) -> Progress:
        """Return the transfers that have ended since the last call."""
        self._look()
        seen, self._seen = self._seen, Progress([], {})
        return seen

    def wait(self) -> None:
        """Wait for what has begun. The next `progress` reports it."""
        begin = monotonic()
        while self.moves():
            if monotonic() - begin > WAIT_S_MAX:
                waiting = sorted(self._worker.requests_in_transfer())
                raise KvfixError(f"transfers of requests {waiting} have not ended within {WAIT_S_MAX:g} s")
            sleep(POLL_S)

    def moves(self) -> bool:
        """Whether something that has begun is not over."""
        self._look()
        return bool(self._worker.requests_in_transfer())

    def close(self) -> None:
        self._worker.close()

    def _look(self) -> None:
        if self._ending or self._loading:
            self._settle()
        ending, self._ending = self._ending, []
        loading, self._loading = self._loading, []
        saved, loaded = self._worker.finished(ending, loading)
        self._seen.saved.extend(saved)
        self.loads += len(loaded)
        for request_id in loaded:
            until = self._until.pop(request_id)
            self._seen.loaded[request_id] = self._worker.recompute.pop(request_id, until)

    def _report(self, each: Scheduled, tokens: Sequence[int], told: tuple[int, int]) -> SimpleNamespace:
        return SimpleNamespace(
            request_id=each.request.request_id,
            new_tokens=list(tokens[told[0] :]),
            new_block_ids=list(each.blocks[told[1] :]),
            computed_position=each.begin,
            num_scheduled_tokens=each.tokens,
        )

    def _make_pool(self, device: Device, block_bytes: int, _: object) -> HostPool:
        return HostPool(device, host_bytes=self._blocks * block_bytes, block_bytes=block_bytes)
