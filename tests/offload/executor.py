"""A small executor with an overlap scheduler: the host runs a step ahead of the device, and gives blocks away at once.

Its forward pass writes what a token's keys and values are, and before that copies all that attention would read. Those
copies are compared with what they had to be, so a block that was foreign or half written when it was read is seen.
"""

from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.native import (
    BlockManager,
    BlockManagerConfig,
    Device,
    OutOfBlocks,
    PinnedArray,
    SequenceRequest,
)
from trtllm_kvfix.offload.patches import noting
from trtllm_kvfix.offload.transfers import DevicePool, pool_of

from .contents import extend, next_token
from .upstream_double import ConnectorManager, Request, RequestScheduler, State

TOKENS_PER_BLOCK = 4
WORDS_PER_TOKEN = 8
IDLE_S_MAX = 120.0  # with nothing computed: longer, and nothing more will come
BLOCK_WORDS = TOKENS_PER_BLOCK * WORDS_PER_TOKEN


MakePool = Callable[[Device, int], Any]


def own_pool(device: Device, blocks: int) -> Any:
    return device.empty((blocks, BLOCK_WORDS), "uint32")


class Read(NamedTuple):
    """One read of attention for a request: what it found, and what it had to find."""

    request_id: int
    found: PinnedArray
    expected: NDArray[np.uint32]


class Group(NamedTuple):
    """Keys and values of some layers: a pool, and the number that a block has in it."""

    pool: Any  # a row for each block; what is behind `words` of each token is nobody's
    place: DevicePool
    words: int  # of a token
    number: Callable[[int], int]

    @staticmethod
    def of(pool: Any, words: int, number: Callable[[int], int]) -> "Group":
        return Group(pool, pool_of(pool), words, number)

    def address(self, block: int) -> int:
        return self.place.address + self.number(block) * self.place.stride


class Executor:
    def __init__(
        self,
        device: Device,
        manager: ConnectorManager,
        *,
        blocks: int = 64,
        chunk_tokens: int = 1 << 20,
        batch: int = 8,
        make_pool: MakePool = own_pool,
    ) -> None:
        self.device, self.manager = device, manager
        self.stream = device.create_stream()
        self.groups = self.make_groups(device, blocks, make_pool)
        self.chunk_tokens, self.batch = chunk_tokens, batch
        self.cache = BlockManager(
            BlockManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, blocks_primary=blocks, partial_reuse=False)
        )
        self.waiting: list[Request] = []
        self.active: list[Request] = []
        self.done: list[Request] = []
        self.reads: list[Read] = []
        self.corrupt: list[int] = []
        self.reads_checked = 0
        self.loaded_tokens = 0
        self.scheduled = 0  # requests in the last step
        self.idle: Callable[[], None] = lambda: None  # waits a while for whatever the next step waits for
        self.weights = 0
        self._values: dict[int, list[int]] = {}  # of each position that a request has computed or read
        self._outlived: set[int] = set()  # requests that have computed with weights that are gone
        self._previous: list[Request] = []  # given to the device, its answer not looked at
        self.scheduler = RequestScheduler(self)
        manager.worker.choosers.room.manager = self
        self.register()

    def make_groups(self, device: Device, blocks: int, make_pool: MakePool) -> list[Group]:
        return [Group.of(make_pool(device, blocks), WORDS_PER_TOKEN, lambda block: block)]

    def register(self) -> None:
        self.manager.worker.register_kv_caches(self.groups[0].pool)

    def submit(self, *requests: Request) -> None:
        self.waiting.extend(requests)

    def run(self, between: Callable[[int], None] = lambda _: None) -> None:
        """Runs until nothing is left to do. `between` runs after each step.

        A busy machine makes each step slow, so only the time in which nothing is computed has a bound.
        """
        until = monotonic() + IDLE_S_MAX
        for step in count():
            if not (self.waiting or self.active):
                self.check_reads()
                return
            assert monotonic() < until, f"{self.waiting} waiting, {self.active} active"
            self.step()
            if self.scheduled:
                until = monotonic() + IDLE_S_MAX
            else:
                self.idle()
            between(step)

    def step(self) -> None:
        active = len(self.active)
        self._admit()
        has_batch = len(self.active) > active  # until those that load are taken out
        self._grow()
        scheduled = [
            self._schedule(request) for request in self.active if request.state in (State.CONTEXT, State.GENERATION)
        ]
        self.scheduled = len(scheduled)
        stream = self.stream if scheduled or has_batch else None
        self.manager.start_step([(one, self.blocks_of(one), tokens) for one, tokens in scheduled], stream)
        for request, tokens in scheduled:
            self._forward(request, tokens)
        if scheduled:
            self.manager.worker.wait_for_save(self.stream)
        previous, self._previous = self._previous, [request for request, _ in scheduled]
        self._answers(previous)
        for request in self.manager.get_finished():
            self._free(request)

    def blocks_of(self, request: Request) -> list[int]:
        ids = self.cache.get_cache_block_ids(request.request_id)[0]
        slots = np.empty((1, 1, 2, len(ids)), np.int32)
        self.cache.copy_batch_block_offsets(slots, [request.request_id], 1, 0)
        return [int(slot) for slot in slots[0, 0, 0]]

    def preempt(self, request: Request) -> None:
        """Take its blocks away at once and begin again, as upstream does: the connector does not learn of it."""
        self.cache.remove_sequence(request.request_id, store=False)
        self._values.pop(request.request_id, None)
        self.active.remove(request)
        self._previous = [one for one in self._previous if one is not request]
        request.state, request.context_current_position = State.WAITING, 0
        request.prompt_len, request.sampled = len(request.tokens), []
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
            request.state = State.GONE
            self.done.append(request)
        elif request.state is not State.SAVING:
            request.cancelled = True
            self._finish(request)

    @property
    def kv_connector_manager(self) -> ConnectorManager:
        return self.manager

    @noting
    def reset_prefix_cache(self) -> None:
        self._outlived.update(request.request_id for request in self.active)
        self.cache.reset_reuse_state()

    @noting
    def update_weights(self, between: Callable[[], None] = lambda: None) -> None:
        """What happens between the new weights and the end of the call may raise."""
        self.weights += 1
        between()
        self.reset_prefix_cache()

    def forget_device_cache(self) -> None:
        self.cache.reset_reuse_state()

    def check_reads(self) -> None:
        self.device.synchronize(self.stream)
        for read in self.reads:
            found = read.found.array.reshape(-1)[: len(read.expected)]
            if not np.array_equal(found, read.expected):
                self.corrupt.append(read.request_id)
        self.reads_checked += len(self.reads)
        self.reads.clear()

    def close(self) -> None:
        self.check_reads()
        self.device.destroy_stream(self.stream)

    def _admit(self) -> None:
        for request in self.scheduler.schedule_request([*self.active, *self.waiting]):
            if request.state is not State.WAITING or len(self.active) >= self.batch:
                continue
            try:
                admission = self.cache.add_sequence(
                    SequenceRequest(
                        request.request_id, request.tokens, lora_id=request.lora_task_id, salt=request.cache_salt_id
                    )
                )
            except OutOfBlocks:
                assert self.active, "a request that fits nowhere"
                return
            self.waiting.remove(request)
            self.active.append(request)
            more = self.manager.get_num_new_matched_tokens(request, admission.tokens_reused)
            self.loaded_tokens += more
            request.context_current_position = admission.tokens_reused + more
            request.state = State.LOADING if more else State.CONTEXT
            self.manager.update_state_after_alloc(request, self.blocks_of(request))

    def _grow(self) -> None:
        """One more token for each that generates; who finds no room for it begins again later."""
        for request in [one for one in self.active if one.state is State.GENERATION]:
            try:
                self.cache.add_token(request.request_id)
            except OutOfBlocks:
                self.preempt(request)

    def _schedule(self, request: Request) -> tuple[Request, int]:
        if request.state is State.GENERATION:
            return request, 1
        return request, min(request.prompt_len - request.context_current_position, self.chunk_tokens)

    def _forward(self, request: Request, tokens: int) -> None:
        known = [*request.tokens[: request.prompt_len], *request.sampled]
        begin = len(known) - 1 if request.state is State.GENERATION else request.context_current_position
        blocks = self.blocks_of(request)
        written = self._values.setdefault(request.request_id, [])
        del written[begin:]
        extend(written, known, self.manager.ranks.rank, self.weights)
        if begin:
            for group in self.groups:
                self._read(request, group, blocks, written[:begin])
        for position in range(begin, begin + tokens):
            block, offset = divmod(position, TOKENS_PER_BLOCK)
            for group in self.groups:
                address = group.address(blocks[block]) + 4 * offset * group.words
                self.device.fill_words(address, group.words, written[position], self.stream)
        if request.state is State.CONTEXT:
            request.context_current_position += tokens
        if begin + tokens == len(known):
            request.state = State.GENERATION
            request.sampled.append(next_token(known))

    def _read(self, request: Request, group: Group, blocks: Sequence[int], written: Sequence[int]) -> None:
        count, words = -(-len(written) // TOKENS_PER_BLOCK), TOKENS_PER_BLOCK * group.words
        found = self.device.pinned((count, words), "uint32")
        steps = np.arange(count, dtype=np.uint64) * np.uint64(4 * words)
        sources = np.array([group.address(block) for block in blocks[:count]], np.uint64)
        sizes = np.full(count, 4 * words, np.uint64)
        self.device.copy_batch(np.uint64(found.address) + steps, sources, sizes, "stream", self.stream)
        expected = np.repeat(np.array(written, np.uint32), group.words)
        self.reads.append(Read(request.request_id, found, expected))

    def _answers(self, previous: Sequence[Request]) -> None:
        """The host learns what the device sampled one step ago."""
        for request in previous:
            stores = request.request_id not in self._outlived
            if request.state is State.CONTEXT and stores:
                self.cache.store_context_blocks(request.request_id, request.context_current_position)
            if request.state is not State.GENERATION:
                continue
            known = len(request.tokens) - request.prompt_len
            if known == 0 and stores:
                self.cache.store_context_blocks(request.request_id, request.prompt_len)
            request.tokens.append(request.sampled[known])
            if request.generated >= request.max_new_tokens:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        self.active.remove(request)
        self._previous = [one for one in self._previous if one is not request]
        if self.manager.request_finished(request, self.blocks_of(request)):
            request.state = State.SAVING
            self.active.append(request)
        else:
            self._free(request)

    def _free(self, request: Request) -> None:
        if request.state is State.GONE:
            return
        if request in self.active:
            self.active.remove(request)
        self._values.pop(request.request_id, None)
        store = not request.cancelled and request.request_id not in self._outlived
        # Nothing has been computed for the last token.
        self.cache.remove_sequence(request.request_id, store=store, tokens=request.tokens[:-1] if store else None)
        request.state = State.GONE
        self.done.append(request)
