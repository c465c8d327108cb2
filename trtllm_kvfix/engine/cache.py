"""The KV cache: `NativeKvCache`, as it would stand behind upstream's V1 manager, and its pages as the model sees them.

A page holds one layer's K, or V, of one block: [KV heads, tokens, head size]. Cached values are float32. The cache has
no name for that type, so it counts each as two halves.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from trtllm_kvfix.canary.canary import Canary, Pool
from trtllm_kvfix.canary.fills import Write
from trtllm_kvfix.engine.batch import StepBatch, StepPart
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig
from trtllm_kvfix.engine.machine import Machine
from trtllm_kvfix.engine.model import Array, Model
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.log import log
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.native import OutOfBlocks, SequenceRequest
from trtllm_kvfix.offload.loop_tier import LoopTier, Scheduled
from trtllm_kvfix.staging import MovableMark, on_stream

HALVES = 2  # in a float32


class Cache:
    def __init__(self, machine: Machine, config: EngineConfig, model: Model) -> None:
        self._machine = machine
        self._config = config
        self.copy_stream = machine.device.create_stream()
        # Nothing runs on this stream. A manager that takes it for the model's orders no copy: hazard H5.
        self._idle = machine.device.create_stream()
        is_own = config.tier == "native"
        self.books = NativeKvCache(
            num_kv_heads_per_layer=[model.kv_heads] * len(model.layers),
            size_per_head=model.head_size * HALVES,
            tokens_per_block=config.tokens_per_block,
            blocks_per_window={config.length_max: (config.blocks_primary, config.blocks_host * is_own)},
            max_attention_window_vec=[config.length_max],
            max_sequence_length=config.length_max,
            dtype="HALF",
            stream=self.copy_stream,
            enable_block_reuse=True,
            onboard_blocks=True,
        )
        with machine.current():
            self.books.allocate_pools(False)
        self.core = self.books.core
        layout = self.books.layout.pools[0]
        self.pages_per_block, self.v_offset = layout.offset_scale, layout.kv_factor - 1
        self.blocks_per_sequence = self.books.max_blocks_per_seq
        page = (model.kv_heads, config.tokens_per_block, model.head_size)
        pool = self.books.get_unique_primary_pool()
        halves = np.asarray(pool) if machine.simulated else pool
        self.pages: Array = halves.view(machine.xp.float32).reshape(-1, *page)
        self.pages[:] = 0
        self.tier = self._connector(pool) if config.blocks_host and not is_own else None
        self.canary = self._new_canary() if config.canary else None
        self._loading: dict[int, Request] = {}
        self.leaving: dict[int, Request] = {}  # ended, and their blocks are still being saved

    def _connector(self, pool: Array) -> LoopTier:
        address, shape = int(self.books.get_block_pool_pointers()[0, 0]), tuple(pool.shape)
        told = SimpleNamespace(address=address, shape=shape, nbytes=pool.nbytes, dtype=pool.dtype)
        machine, config = self._machine, self._config
        return LoopTier(machine.device, told, config.tokens_per_block, config.blocks_host, machine.settle)

    def _new_canary(self) -> Canary:
        (shape,) = self.books.layout.pools
        pool = Pool(int(self.books.get_block_pool_pointers()[0, 0]), shape.slot_bytes, shape.layers)
        off, machine, config = self._config.off, self._machine, self._config
        canary = Canary(
            machine.device, machine.stream, [pool], config.tokens_per_block, config.canary, off,
            [HAZARDS[fix] for fix in off], seed=0, say=log.info,
        )  # fmt: skip
        self.books.watch_copies(canary.moved)
        return canary

    # ---- an iteration ----

    def begin(self) -> None:
        """Begin an iteration: the copies of the last one end."""
        self._let_copies_go()
        self._take_progress()
        self.books.sync_transfer_manager_with_buffer_manager()

    def prepare(self, arriving: Sequence[Request], growing: Sequence[Request]) -> list[Request]:
        """Admit, then grow each by a position. Returns those of `arriving` for whom there was no room after all."""
        with self._ordering():
            refused = self._admit(arriving)
            refused += self._make_room(growing, [each for each in arriving if each not in refused])
            for request in growing:
                self.books.add_token(request.request_id)
            self.books.refresh_blocks()
        for request in arriving:
            if request not in refused:
                if self.canary is not None:
                    blocks, reused = self._blocks(request), request.context_current_position
                    self.canary.admitted(request.request_id, blocks, reused)
                self._look_in_tier(request)
                request.tokens_reused += request.context_current_position
        return refused

    def _make_room(self, growing: Sequence[Request], admitted: list[Request]) -> list[Request]:
        """One by one, a batch may take more than each was promised. The last to come goes back, so that all can
        grow."""
        back: list[Request] = []
        while self.blocks_to_grow(growing) > self.free_blocks():
            self._let_copies_go()
            self._machine.let_go(self._machine.held)  # copies are waited for, and they may be behind what is held
            self.books.start_scheduling()
            if not admitted or self.blocks_to_grow(growing) <= self.free_blocks():
                break
            back.append(admitted.pop())
            self.books.remove_sequence(back[-1].request_id, back[-1], False)
        return back

    def transfer(self, batch: StepBatch) -> None:
        """Start what the connector stores and loads beside this step."""
        if self.tier is None:
            return
        parts = batch.parts
        blocks = self.books.get_batch_cache_block_ids([part.request.request_id for part in parts], 0)
        scheduled = [
            Scheduled(part.request, part.begin, part.tokens, own[0]) for part, own in zip(parts, blocks, strict=True)
        ]
        begun = MovableMark(self._machine.device, self._ordering_stream)
        begun.record()
        self.tier.step(scheduled, self._ordering_stream)
        if self._config.late_every and begun.done():
            self.tier.wait()  # nothing holds these: they are over before the step begins

    def launched(self, batch: StepBatch) -> None:
        """The step's kernels have been enqueued."""
        if self.canary is not None:
            self.canary.step([self._write(part) for part in batch.parts])

    def _write(self, part: StepPart) -> Write:
        request, end = part.request, part.begin + part.tokens
        slots = self._blocks(request)[part.begin // self._config.tokens_per_block :]
        return Write(request.request_id, slots, part.begin, end, accepted=end)

    def _look_in_tier(self, request: Request) -> None:
        if self.tier is not None and self.tier.admitted(
            request, request.context_current_position, self._blocks(request)
        ):
            request.loading = True
            self._loading[request.request_id] = request

    def _take_progress(self) -> None:
        if self.tier is None:
            return
        progress = self.tier.progress()
        for request_id, position in progress.loaded.items():
            request = self._loading.pop(request_id)
            if self.canary is not None:
                self.canary.loaded(request_id, request.context_current_position, position)
            request.loading, request.context_current_position = False, position
            self.books.store_context_blocks(request)  # as a chunk that has been computed
        for request_id in progress.saved:
            self.books.remove_sequence(request_id, self.leaving.pop(request_id), False)

    def wait_for_leaving(self) -> None:
        self._machine.settle()  # a save that had to wait for another may have begun behind work that is held
        while self.leaving and self.tier is not None:
            self.tier.wait()
            self._take_progress()

    def _blocks(self, request: Request) -> list[int]:
        return self.books.get_cache_block_ids(request.request_id, 0)[0]

    def _admit(self, arriving: Sequence[Request]) -> list[Request]:
        if not arriving:
            return []
        if self._config.manager == "native":
            try:
                self.books.add_sequence_batch([(r.request_id, r.prompt_len, 1) for r in arriving], list(arriving))
                self.books.get_token_count(arriving[0].request_id)  # all are admitted now
            except OutOfBlocks:
                return list(arriving)
            return []
        refused = []
        for request in arriving:
            try:
                self.books.add_sequence(request.request_id, request.prompt_len, 1, request)
                self.books.get_token_count(request.request_id)  # it is admitted now, alone
            except OutOfBlocks:
                refused.append(request)
        return refused

    @property
    def _ordering_stream(self) -> int:
        """The stream that copies are ordered with: the model's, or in a control the one on which nothing runs."""
        return self._machine.stream if self._config.has("transfer-order") else self._idle

    @contextmanager
    def _ordering(self) -> Iterator[None]:
        """The streams that copies between the tiers wait for, and those that wait for the copies."""
        if self.tier is not None:
            yield
            return
        if self._config.late_copies:
            self._machine.hold_copies(self.copy_stream, in_front_of=self._ordering_stream)
        with on_stream(self._machine.device, self._ordering_stream):
            yield

    def store(self, request: Request) -> None:
        """A chunk of its prompt has been computed."""
        self.books.store_context_blocks(request)
        if not self._config.has("computed-blocks"):
            self._offer_all(request)

    def _let_copies_go(self) -> None:
        """Let copies run that are still held: they are later than the step, as no event orders the two."""
        if self._machine.holds_copies:
            self._machine.settle()
            self._machine.let_copies_go()

    def remove(self, request: Request) -> None:
        self._let_copies_go()
        if self.canary is not None:
            self.canary.released(request.request_id)
        if not self._config.has("computed-blocks"):
            self._offer_all(request)
        if self.tier is not None:
            if not request.finished or request.loading:
                self._loading.pop(request.request_id, None)
                self.tier.over(request)
            elif self.tier.ended(request, self._blocks(request)):
                self.leaving[request.request_id] = request
                return
        self.books.remove_sequence(request.request_id, request, False)

    def _offer_all(self, request: Request) -> None:
        """Upstream's 1.2.0: every block of the prompt, computed or not."""
        if request.in_prompt:
            self.core.store_context_blocks(request.request_id, request.prompt_len)

    # ---- questions ----

    def free_blocks(self) -> int:
        (blocks,) = self.books.questions.free_blocks()
        return blocks

    def blocks_to_grow(self, requests: Sequence[Request]) -> int:
        ids = [request.request_id for request in requests]
        return int(self.core.blocks_to_grow(ids, [1] * len(ids))) if ids else 0

    def prospect(self, request: Request) -> tuple[int, int]:
        """(blocks that it would take, tokens that it would reuse), were it admitted now and alone."""
        prompt = SequenceRequest(
            request.request_id, request.tokens, lora_id=request.lora_task_id, salt=request.cache_salt_id
        )
        return self.core.blocks_to_admit(prompt)[0], self.core.analyze_prefix_reuse(prompt).tokens

    # ---- where a sequence lies ----

    def write_pages(self, table: Any, requests: Sequence[Request]) -> None:
        """Write pages as attention reads them: the page of the first layer's K, and of its V."""
        self.books.copy_batch_block_offsets(table, [r.request_id for r in requests], 1, 0)

    def write_blocks(self, row: Any, request: Request) -> None:
        """Write blocks as V2's tables hold them: numbers of blocks, from which a kernel computes pages."""
        self.core.copy_batch_block_offsets(row, [request.request_id], 1, 0)

    def close(self) -> None:
        self.begin()
        if self.tier is not None:
            self.tier.close()
        if self.canary is not None:
            self.canary.close()
        self.books.release_pools()
        for stream in (self.copy_stream, self._idle):
            self._machine.device.destroy_stream(stream)
