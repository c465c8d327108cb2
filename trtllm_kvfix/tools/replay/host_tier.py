"""The offload connector's tiers as a replay sees them: the decisions of its scheduler side.

Transfers end in the iteration in which they begin. In the store behind the host tier, every fetch is worth it and takes
no time; it evicts the block that was put or asked for the longest ago. TensorRT-LLM's own host tier is part of the
block manager and needs nothing here.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.native import BlockManager, TierIndex
from trtllm_kvfix.offload.remote.keys import array_of, keys_behind, start_of
from trtllm_kvfix.offload.remote.scheduler import staging_slots

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
    known: KnownRequest
    sequence: int  # of the index
    had: int  # blocks that the GPU had when it came
    indexed: int = 0  # blocks that the index has
    covered: int = 0  # blocks that are here or on their way


class ConnectorTier:
    """A prediction: the same index, and nothing of the connector's transfers."""

    def __init__(
        self, slots: int, tokens_per_block: int, known: Callable[[int], KnownRequest], admission: str = "adaptive"
    ) -> None:
        self._index = TierIndex(slots, tokens_per_block, admission=admission)
        self._tokens_per_block = tokens_per_block
        self._known = known
        self._live: dict[int, Live] = {}
        self._ran: set[int] = set()
        self._stores: list[list[int]] = []  # slots of what was begun in this iteration
        self._loads: list[list[int]] = []
        self._stored = self._loaded = 0

    def attach(self, manager: BlockManager) -> None:
        """This tier does not follow the blocks of the GPU."""

    def find(self, index: int, tokens_found: int) -> Found:
        known = self._known(index)
        identity = known.identity
        sequence = self._index.open(lora_id=identity.lora_id, salt=identity.salt, extra_keys=identity.extra_keys)
        live = self._live[index] = Live(known, sequence, tokens_found // self._tokens_per_block)
        limit = (known.prompt_len - 1) // self._tokens_per_block
        self._index_blocks(live, limit)
        here, first = self._index.held(sequence), tokens_found // self._tokens_per_block
        held = self._more(live, here, limit, first)
        gained = held * self._tokens_per_block - tokens_found
        if held <= first or gained <= 0:
            return Found()
        self._loads.append(self._index.pin(sequence, first, held))
        self._loaded += held - first
        return Found(gained, held - first, held - max(here, first))

    def step(self, running: Sequence[tuple[int, int]]) -> bool:
        """False if a store was put off. It is tried again in the next iteration."""
        is_stored = True
        for index, computed in sorted(running, key=lambda one: one[0] in self._ran):  # the new ones first
            self._ran.add(index)
            is_stored &= self._store(index, computed)
        self._end_transfers()
        return is_stored

    def finish(self, indices: Sequence[int]) -> None:
        waiting = list(indices)
        while waiting:
            waiting = [index for index in waiting if not self._store(index, self._live[index].known.computed)]
            self._end_transfers()
        for index in indices:
            live = self._live.pop(index)
            self._ended(live)
            self._index.close(live.sequence)
            self._ran.discard(index)

    def counted(self) -> TierCounts:
        return TierCounts(self._stored, self._loaded, self._index.stats().evicted)

    def _index_blocks(self, live: Live, blocks: int) -> None:
        if blocks > live.indexed:
            size = self._tokens_per_block
            self._index.extend(live.sequence, live.known.tokens[live.indexed * size : blocks * size])
            live.indexed = blocks

    def _store(self, index: int, computed: int) -> bool:
        """Store what is new. False: try later, because another request has the same blocks on their way."""
        whole, live = computed // self._tokens_per_block, self._live[index]
        if whole <= live.covered:
            return True
        self._index_blocks(live, whole)
        claim = self._index.claim(live.sequence, whole, known=live.had)
        if claim is None:
            return False
        behind = max(claim.first + len(claim.slots), live.covered, live.had)
        live.covered = whole
        if claim.slots:
            self._stores.append(claim.slots)
            self._stored += len(claim.slots)
            self._stored_in(live, claim.first, len(claim.slots))
        if behind < whole:
            self._stored += self._left_out(live, behind, whole)
        return True

    def _more(self, live: Live, held: int, limit: int, first: int) -> int:
        """Count the blocks that are held once a store behind this tier has brought those that it has."""
        del live, limit, first
        return held

    def _stored_in(self, live: Live, first: int, count: int) -> None:
        """These blocks of the request are in this tier now."""

    def _left_out(self, live: Live, first: int, end: int) -> int:
        """Count those of these blocks that are stored although this tier did not take them."""
        del live, first, end
        return 0

    def _ended(self, live: Live) -> None:
        """The request has ended and stores nothing more."""

    def _end_transfers(self) -> None:
        for slots in self._stores:
            self._index.commit(slots)
        for slots in self._loads:
            self._index.unpin(slots)
        self._stores.clear()
        self._loads.clear()


MIN_REUSE_BLOCKS = 4  # as the connector's default


class KeyStore:
    """Keys of blocks, up to a number of them."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._keys: OrderedDict[bytes, None] = OrderedDict()

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


class RemoteTier(ConnectorTier):
    def __init__(
        self,
        slots: int,
        tokens_per_block: int,
        known: Callable[[int], KnownRequest],
        blocks_remote: int,
        admission: str = "adaptive",
    ) -> None:
        self._staging = self._staging_free = staging_slots(slots)
        super().__init__(slots - self._staging, tokens_per_block, known, admission)
        self._store_of_all = KeyStore(blocks_remote)
        self._keys_by_sequence: dict[int, list[bytes]] = {}  # by sequence of the index

    def _more(self, live: Live, held: int, limit: int, first: int) -> int:
        here = max(held, first)
        keys = self._keys(live)[held:limit]
        end = held + self._store_of_all.leading(keys) if limit - here >= MIN_REUSE_BLOCKS else held
        if end - here < MIN_REUSE_BLOCKS:
            return held
        pinned = self._index.pin(live.sequence, first, held)
        claim = self._index.claim(live.sequence, end, reused=True)
        self._index.unpin(pinned)
        if claim is None or not claim.slots:
            return held
        if claim.first + len(claim.slots) - first < MIN_REUSE_BLOCKS:
            self._index.abandon(claim.slots)
            return held
        self._index.commit(claim.slots)
        return claim.first + len(claim.slots)

    def _stored_in(self, live: Live, first: int, count: int) -> None:
        self._store_of_all.put(self._keys(live)[first : first + count])

    def _left_out(self, live: Live, first: int, end: int) -> int:
        of_prompt = max(live.known.prompt_len // self._tokens_per_block - first, 0)
        for_answers = max(self._staging_free - self._staging // 2, 0)  # these leave half of the slots free
        count = max(min(end - first, self._staging_free, of_prompt), min(end - first, for_answers))
        self._staging_free -= count
        self._stored_in(live, first, count)
        return count

    def _end_transfers(self) -> None:
        super()._end_transfers()
        self._staging_free = self._staging

    def _ended(self, live: Live) -> None:
        self._keys_by_sequence.pop(live.sequence, None)

    def _keys(self, live: Live) -> list[bytes]:
        """Keys of the blocks that the index has."""
        size, identity = self._tokens_per_block, live.known.identity
        keys = self._keys_by_sequence.setdefault(live.sequence, [])
        parent = keys[-1] if keys else start_of(b"", identity)
        tokens = live.known.tokens[len(keys) * size : live.indexed * size]
        keys += keys_behind(parent, len(keys), array_of(tokens), size, identity.extra_keys)
        return keys
