"""The offload connector's tiers as a replay sees them: its policy, with transfers that end at once.

In the store behind the host tier, every fetch takes no time, and is worth it unless a speed is given; it evicts the
block that was put or asked for the longest ago. TensorRT-LLM's own host tier is part of the block manager and needs
nothing here.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.native import BlockManager, TierIndex
from trtllm_kvfix.offload.policy import Staging, Taken, always, policy_of
from trtllm_kvfix.offload.remote.keys import array_of, keys_behind, start_of
from trtllm_kvfix.offload.worth import Estimate, HitClasses

Tokens = NDArray[np.int32]


class KnownRequest(NamedTuple):
    """A request, with its prompt and its answer."""

    identity: Identity
    tokens: Tokens
    prompt_len: int

    @property
    def computed(self) -> int:
        """Tokens that it leaves behind: of the last one nothing is computed."""
        return len(self.tokens) - 1


class Found(NamedTuple):
    """The part of a prompt that the host tier adds to the part on the GPU."""

    tokens: int = 0
    blocks: int = 0
    blocks_remote: int = 0  # of these, from the store behind it


class TierCounts(NamedTuple):
    """Blocks since the beginning."""

    stored: int
    loaded: int
    dropped: int


class HostTier(Protocol):
    """Asked by a replay, which names requests by their index."""

    def attach(self, manager: BlockManager) -> None:
        """The blocks of the GPU."""

    def find(self, index: int, tokens_found: int) -> Found:
        """Find the rest of an admitted prompt of which the GPU has `tokens_found`. It is there in the next
        iteration."""

    def step(self, running: Sequence[tuple[int, int]]) -> bool | None:
        """Note the requests that run in this iteration, with the tokens that were computed before it.

        True: until the next call, leave out requests that have filled no block since the last, and iterations without
        others.
        """

    def finish(self, indices: Sequence[int]) -> None:
        """Their blocks of the GPU are given back right after this."""

    def counted(self) -> TierCounts: ...


@dataclass
class Live:
    """A request as the policy sees it."""

    known: KnownRequest
    index: TierIndex
    sequence: int
    had: int
    covered: int = 0
    _indexed: int = 0  # blocks that the index has
    _keys: list[bytes] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Asked when its answer is not known."""
        return self.known.prompt_len

    def index_blocks(self, blocks: int) -> None:
        if blocks > self._indexed:
            size = self.index.tokens_per_block
            self.index.extend(self.sequence, self.known.tokens[self._indexed * size : blocks * size])
            self._indexed = blocks

    def prompt_blocks_from(self, first: int) -> int:
        return max(self.known.prompt_len // self.index.tokens_per_block - first, 0)

    def priorities_until(self, _end: int) -> list[int]:
        """A trace knows none."""
        return []

    def keys(self, first: int, end: int) -> list[bytes]:
        """Of blocks that the index has."""
        size, identity, keys = self.index.tokens_per_block, self.known.identity, self._keys
        if end > len(keys):
            parent = keys[-1] if keys else start_of(b"", identity)
            tokens = self.known.tokens[len(keys) * size : self._indexed * size]
            keys += keys_behind(parent, len(keys), array_of(tokens), size, identity.extra_keys)
        return keys[first:end]


MIN_REUSE_BLOCKS = 4  # of a store, as the connector's default


def always_fetched(_blocks: int, _tokens: int) -> bool:
    return True


class KeyStore:
    """A store of keys, up to a number of them."""

    def __init__(self, blocks: int, is_worth: Callable[[int, int], bool] = always_fetched) -> None:
        """is_worth: whether so many blocks come sooner than so many tokens are computed."""
        self._blocks, self.is_worth = blocks, is_worth
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self.staging = Staging(1)  # until the pool is known

    def put(self, keys: list[bytes]) -> None:
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._blocks:
            self._keys.popitem(last=False)

    def leading(self, keys: list[bytes]) -> int:
        """Count the leading keys that the store has, up to the first that it lacks. They are the newest from now on."""
        for at, key in enumerate(keys):
            if key not in self._keys:
                return at
            self._keys.move_to_end(key)
        return len(keys)

    def share(self, slots: int) -> Staging:
        self.staging = Staging(slots)
        return self.staging

    def reach(self, live: Live, held: int, limit: int) -> int:
        return held + self.leading(live.keys(held, limit))

    def names(self, live: Live, first: int, end: int) -> tuple[bytes, ...]:
        return tuple(live.keys(first, end))

    def takes(self, _live: Live) -> bool:
        return True


class TimedHits:
    """Whether a hit of a tier comes sooner than its tokens are computed, by speeds that the user gives.

    A request that loads waits for an iteration besides.
    """

    def __init__(
        self, tier: str, *, iteration_ms: float, block_s: float, tokens_per_block: int, tokens_per_s: float
    ) -> None:
        self._wait_s, self._block_s, self._tokens_per_block = iteration_ms / 1000, block_s, tokens_per_block
        self._tokens_per_s = tokens_per_s
        self.classes = HitClasses(tier)

    def is_worth(self, tokens: int) -> bool:
        return self.are_worth(-(-tokens // self._tokens_per_block), tokens)

    def are_worth(self, blocks: int, tokens: int) -> bool:
        """Where a part of the tokens comes from elsewhere, the tier has fewer blocks than they fill."""
        estimate = Estimate(self._wait_s + blocks * self._block_s, tokens / self._tokens_per_s)
        self.classes.note(tokens, estimate, is_loaded=estimate.is_worth)
        return estimate.is_worth


class PolicyTier:
    """The tiers of the offload connector. Every transfer has ended when the call is over in which it begins."""

    def __init__(
        self,
        slots: int,
        tokens_per_block: int,
        known: Callable[[int], KnownRequest],
        admission: str = "adaptive",
        blocks_remote: int = 0,
        is_worth: Callable[[int], bool] = always,
        is_fetch_worth: Callable[[int, int], bool] = always_fetched,
    ) -> None:
        self._store = KeyStore(blocks_remote, is_fetch_worth) if blocks_remote else None
        self._policy = policy_of(
            slots, tokens_per_block, admission, is_worth=is_worth, store=self._store, store_blocks_min=MIN_REUSE_BLOCKS
        )
        self._tokens_per_block = tokens_per_block
        self._known = known
        self._live: dict[int, Live] = {}
        self._ran: set[int] = set()
        self._stores: list[tuple[Live, Taken]] = []  # what was begun in this iteration
        self._loads: list[list[int]] = []
        self._stored = self._loaded = 0

    def attach(self, manager: BlockManager) -> None:
        """This tier does not follow the blocks of the GPU."""

    def find(self, index: int, tokens_found: int) -> Found:
        known, tiers = self._known(index), self._policy.index
        identity = known.identity
        sequence = tiers.open(lora_id=identity.lora_id, salt=identity.salt, extra_keys=identity.extra_keys)
        live = self._live[index] = Live(known, tiers, sequence, tokens_found // self._tokens_per_block)
        load = self._policy.find(live, tokens_found)
        if load is None:
            return Found()
        end, remote = load.end // self._tokens_per_block, 0
        if load.fetch is not None:
            self._policy.fetched(load.fetch.slots, len(load.fetch.slots))
            load.slots += tiers.pin(sequence, load.first + len(load.slots), end)
            remote = end - max(load.fetch.first, load.first)
        self._loads.append(load.slots)
        self._loaded += end - load.first
        return Found(load.tokens, end - load.first, remote)

    def step(self, running: Sequence[tuple[int, int]]) -> bool:
        """False if a store was put off. It is tried again in the next iteration."""
        is_stored = True
        if len(running) > 1:
            running = sorted(running, key=lambda one: one[0] in self._ran)  # the new ones first
        for index, computed in running:
            self._ran.add(index)
            is_stored &= self._begin_store(self._live[index], computed)
        self._end_transfers()
        return is_stored

    def finish(self, indices: Sequence[int]) -> None:
        waiting = [self._live[index] for index in indices]
        while waiting:
            waiting = [live for live in waiting if not self._begin_store(live, live.known.computed)]
            self._end_transfers()
        for index in indices:
            self._policy.index.close(self._live.pop(index).sequence)
            self._ran.discard(index)

    def counted(self) -> TierCounts:
        return TierCounts(self._stored, self._loaded, self._policy.index.stats().evicted)

    def _begin_store(self, live: Live, computed: int) -> bool:
        """False: try later, because another request has the same blocks on their way."""
        whole = computed // self._tokens_per_block
        if whole <= live.covered:
            return True
        taken = self._policy.claim(live, whole)
        if taken is None:
            return False
        live.covered = whole
        self._stores += [(live, one) for one in taken if one.slots]
        return True

    def _end_transfers(self) -> None:
        for live, (first, slots, *_) in self._stores:
            self._policy.stored(slots, well=True)
            self._stored += len(slots)
            if self._store is not None:
                self._store.put(live.keys(first, first + len(slots)))
                if slots[0] in self._store.staging:
                    self._store.staging.give_back(slots)
        for loaded in self._loads:
            self._policy.loaded(loaded)
        self._stores.clear()
        self._loads.clear()
