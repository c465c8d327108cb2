"""The offload connector as the host tier of a replay: its two sides, its index and its lanes, on a simulated device.

A block holds its hash. What comes back is compared with what it has to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import BlockManager, BlockManagerConfig, SequenceRequest, block_hashes, open_device
from trtllm_kvfix.offload import KvfixOffloadScheduler, KvfixOffloadWorker
from trtllm_kvfix.staging.place import on_stream
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.host_tier import Found, KnownRequest, TierCounts
from trtllm_kvfix.tools.replay.outcome import CacheShape, ReplayOutcome

BLOCK_BYTES = 8
TOKENS_PER_BLOCK = 32
WAIT_S = 60.0
SHAPE = BlockManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, blocks_primary=1)
MASK = 2**64 - 1


def moved_bytes() -> tuple[int, int]:
    """The bytes of transfers that have ended. Some begin and end within one call of the worker."""
    return int(counters.offload_stored_bytes.value), int(counters.offload_loaded_bytes.value)


@dataclass
class Request:
    """A request as the connector sees upstream's."""

    request_id: int
    known: KnownRequest
    context_current_position: int = 0
    is_context_init_state: bool = True

    def __post_init__(self) -> None:
        self.prompt_len = self.known.prompt_len
        self.lora_task_id = self.known.identity.lora_id
        self.cache_salt_id = self.known.identity.salt
        self.py_multimodal_data, self.sampling_config = None, SimpleNamespace(beam_width=1)
        self.tokens: list[int] = self.known.tokens.tolist()
        request = SequenceRequest(0, self.known.tokens, lora_id=self.lora_task_id, salt=self.cache_salt_id)
        self.hashes: NDArray[np.uint64] = np.array([one & MASK for one in block_hashes(request, SHAPE)], np.uint64)
        self.blocks: list[int] = []
        self.written = 0  # blocks
        self.told = 0  # tokens; nothing before the first step
        self.blocks_told = 0
        self.has_finished = False

    @property
    def py_request_id(self) -> int:
        return self.request_id

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return self.tokens if self.has_finished else self.tokens[: self.prompt_len]


class RealTier:
    def __init__(self, replay_shape: CacheShape) -> None:
        assert replay_shape.tokens_per_block == TOKENS_PER_BLOCK
        self.device = open_device("cpu", 1)
        self.stream = self.device.create_stream()
        pool_shape = (replay_shape.blocks_primary, 1)
        self.pool = self.device.empty(pool_shape, "uint64")
        self.source, self.found = (self.device.pinned(pool_shape, "uint64") for _ in range(2))
        config = SimpleNamespace(tokens_per_block=TOKENS_PER_BLOCK, host_cache_size=0)
        args = SimpleNamespace(kv_cache_config=config)
        self.scheduler, self.worker = KvfixOffloadScheduler(args), KvfixOffloadWorker(args)
        with on_stream(self.device, self.stream):
            self.worker.register_kv_caches(self.pool)
        self.requests: dict[int, Request] = {}
        self.loading: dict[int, tuple[int, int]] = {}  # blocks that come, by request
        self.foreign: list[int] = []  # requests with a block that is not theirs
        self.began = moved_bytes()

    def attach(self, manager: BlockManager) -> None:
        self.manager = manager

    def find(self, index: int, tokens_found: int) -> Found:
        request = self.requests[index] = Request(index, self.replay.known(index))
        request.blocks = self.manager.get_cache_block_ids(index)[0]
        tokens, is_async = self.scheduler.get_num_new_matched_tokens(request, tokens_found)
        assert is_async == (tokens > 0)
        self.scheduler.update_state_after_alloc(request, request.blocks)
        request.context_current_position = tokens_found + tokens
        first, end = tokens_found // TOKENS_PER_BLOCK, request.context_current_position // TOKENS_PER_BLOCK
        request.written = end if tokens else first
        if not tokens:
            return Found()
        self.loading[index] = first, end
        return Found(tokens, end - first)

    def step(self, running: Sequence[tuple[int, int]]) -> None:
        reports: Any = SimpleNamespace(new_requests=[], cached_requests=[])
        for index, computed in running:
            request = self.requests[index]
            self._write(request, computed)
            kind = reports.cached_requests if request.told else reports.new_requests
            kind.append(self._report(request, computed))
        self.worker.bind_connector_meta(self.scheduler.build_connector_meta(reports))
        self.worker.start_load_kv(self.stream)
        self._settle([], list(self.loading))
        self._look_at_loads()

    def finish(self, indices: Sequence[int]) -> None:
        saving = []
        for index in indices:
            request = self.requests[index]
            request.has_finished, request.context_current_position = True, request.prompt_len
            request.blocks = self.manager.get_cache_block_ids(index)[0]
            self._write(request, request.known.computed)
            if self.scheduler.request_finished(request, request.blocks):
                saving.append(index)
        self._settle(saving, [])
        for index in indices:
            del self.requests[index]

    def counted(self) -> TierCounts:
        self.scheduler.build_connector_meta(None)
        index = self.scheduler.side.index
        assert index is not None
        index.check_invariants()
        assert index.stats().owned == 0
        stored, loaded = (now - before for now, before in zip(moved_bytes(), self.began, strict=True))
        return TierCounts(stored // BLOCK_BYTES, loaded // BLOCK_BYTES, index.stats().evicted)

    def run(self, workload: Workload, replay_shape: CacheShape) -> ReplayOutcome:
        self.replay = Replay(workload, replay_shape, tier=self)
        return self.replay.run()

    def close(self) -> None:
        assert self.worker.shutdown()

    def _report(self, request: Request, computed: int) -> Any:
        """The request's news since the last step; the token that is fed next is known."""
        request.blocks = self.manager.get_cache_block_ids(request.request_id)[0]
        end = max(computed + 1, request.prompt_len)
        data = SimpleNamespace(
            request_id=request.request_id,
            new_tokens=request.tokens[request.told : end],
            new_block_ids=request.blocks[request.blocks_told :],
            computed_position=computed,
            num_scheduled_tokens=1,
        )
        request.told, request.blocks_told = end, len(request.blocks)
        return data

    def _write(self, request: Request, computed: int) -> None:
        """The blocks that have become whole."""
        whole = computed // TOKENS_PER_BLOCK
        if whole <= request.written:
            return
        slots = np.array(request.blocks[request.written : whole], np.uint64)
        # The stream has ended all that it was given, so nothing reads these words now.
        self.source.array[slots.astype(np.int64), 0] = request.hashes[request.written : whole]
        self._copy(self.pool.address, self.source.address, slots)
        request.written = whole

    def _settle(self, saving: list[int], loading: list[int]) -> None:
        """Waits until every planned transfer has ended."""
        waiting = set(saving), set(loading)
        transfers = self.worker.side._transfers
        assert transfers is not None
        while True:
            for running in transfers.running():
                assert running.lane.wait(running.job.number, WAIT_S)
            saved, loaded = self.worker.get_finished(saving, loading)
            saving, loading = [], []
            waiting[0].difference_update(saved)
            waiting[1].difference_update(loaded)
            if not (waiting[0] or waiting[1] or transfers.running()):
                self.device.synchronize(self.stream)
                assert self.worker.requests_to_recompute == {}
                return

    def _look_at_loads(self) -> None:
        for index, (first, end) in self.loading.items():
            request = self.requests[index]
            slots = np.array(request.blocks[first:end], np.uint64)
            self._copy(self.found.address, self.pool.address, slots)
            self.device.synchronize(self.stream)
            if not np.array_equal(self.found.array[slots.astype(np.int64), 0], request.hashes[first:end]):
                self.foreign.append(index)
        self.loading.clear()

    def _copy(self, to: int, origin: int, slots: NDArray[np.uint64]) -> None:
        offsets = slots * np.uint64(BLOCK_BYTES)
        sizes = np.full(len(slots), BLOCK_BYTES, np.uint64)
        self.device.copy_batch(np.uint64(to) + offsets, np.uint64(origin) + offsets, sizes, "stream", self.stream)
