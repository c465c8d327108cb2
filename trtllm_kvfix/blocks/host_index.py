"""What the host tier holds, and where: a block manager of one tier, whose slots are those of the host pool.

A store is a sequence in it. What the host tier has already is matched, the rest gets slots, and only when every byte
has arrived do they become blocks that can be found. A load is a set of pins. One thread uses this: the scheduler's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.native import (
    BlockManager,
    BlockManagerConfig,
    OutOfBlocks,
    Retention,
    TierStats,
    block_hashes,
)

LOOKUP = 0  # the number of a sequence that is only asked about
Tokens = NDArray[np.int32]


class Pins(NamedTuple):
    block_ids: tuple[int, ...]
    slots: tuple[int, ...]
    hashes: tuple[int, ...]


class Claim(NamedTuple):
    """A store that may begin: block `first` of the prefix goes to slots[0], and so on."""

    first: int
    slots: tuple[int, ...]
    hashes: tuple[int, ...]


class HostIndex:
    def __init__(self, slots: int, tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self.slots = slots
        # Whole blocks only: a part of one is not worth a transfer.
        self._config = BlockManagerConfig(tokens_per_block=tokens_per_block, blocks_primary=slots, partial_reuse=False)
        self._manager = BlockManager(self._config)
        self._stores: dict[int, Claim] = {}
        self._tokens: dict[int, int] = {}
        self._storing: set[int] = set()  # hashes: whoever has the same block need not send it again
        self._outlived: set[int] = set()  # stores that run while everything is dropped: they hold what was dropped
        self._condemned: set[int] = set()  # hashes of blocks that are bad, until they are stored anew

    def blocks_held(self, identity: Identity, tokens: Tokens) -> int:
        """Blocks of the prefix that can be loaded; never the one with the last token, which is always computed."""
        request = identity.sequence(LOOKUP, tokens)
        held = self._manager.analyze_prefix_reuse(request).blocks_primary
        if not self._condemned:
            return held
        hashes = block_hashes(request, self._config)[:held]
        return next((at for at, one in enumerate(hashes) if one in self._condemned), held)

    def pin(self, identity: Identity, tokens: Tokens, first: int, end: int) -> Pins:
        """Pin blocks first to end of a prefix that is held: its content is what is looked up."""
        request = identity.sequence(LOOKUP, tokens)
        hashes = block_hashes(request, self._config)[first:end]
        answer = self._manager.find_and_pin_blocks_by_hash(hashes, request=request)
        found = [block for block in answer if block is not None]
        return Pins(
            tuple(block.block_id for block in found),
            tuple(block.slot for block in found),
            tuple(block.block_hash for block in found),
        )

    def unpin(self, pins: Pins) -> None:
        self._manager.unpin_blocks_by_id(list(pins.block_ids))

    def condemn(self, pins: Pins, slots: Sequence[int]) -> None:
        """What these slots hold is not what was stored. Nobody loads it again; it goes when its slot is wanted."""
        self._condemned.update(one for slot, one in zip(pins.slots, pins.hashes, strict=True) if slot in slots)

    def missing(self, identity: Identity, tokens: Tokens) -> tuple[int, bool]:
        """How many of these whole blocks are here, and whether one of the others is on its way."""
        beyond = identity.sequence(LOOKUP, np.append(tokens, np.int32(0)))  # so that the last block counts as well
        held = self._manager.analyze_prefix_reuse(beyond).blocks_primary
        hashes = block_hashes(beyond, self._config)[held:]
        return held, not self._storing.isdisjoint(hashes)

    def begin_store(self, job: int, identity: Identity, tokens: Tokens, priorities: Sequence[int] = ()) -> Claim | None:
        """`tokens` are whole blocks, not all of which are here. None where no slots can be had."""
        request = identity.sequence(job, tokens, retention(priorities, self.tokens_per_block))
        try:
            admission = self._manager.add_sequence(request)
        except OutOfBlocks:
            return None
        blocks = len(tokens) // self.tokens_per_block
        offsets = np.empty((1, 1, 2, blocks), np.int32)
        self._manager.copy_batch_block_offsets(offsets, [job], 1, 0)
        first = admission.blocks_reused
        hashes = tuple(block_hashes(request, self._config)[first:])
        claim = Claim(first, tuple(offsets[0, 0, 0, first:].tolist()), hashes)
        self._stores[job], self._tokens[job] = claim, len(tokens)
        self._storing.update(hashes)
        return claim

    def end_store(self, job: int, *, arrived: bool) -> Claim:
        """Make the blocks findable, or give their slots back."""
        claim, tokens = self._stores.pop(job), self._tokens.pop(job)
        arrived = arrived and job not in self._outlived
        self._outlived.discard(job)
        if arrived:
            self._manager.store_context_blocks(job, tokens)
            self._condemned.difference_update(claim.hashes)
        self._manager.remove_sequence(job, store=arrived)
        self._storing.difference_update(claim.hashes)
        return claim

    def drop(self) -> None:
        """Nothing that is here or on its way now will be found again; what is pinned stays until it is unpinned."""
        self._manager.reset_reuse_state()
        self._outlived.update(self._stores)

    def stats(self) -> TierStats:
        return self._manager.get_kv_cache_stats().windows[0].primary

    def blocks_dropped(self) -> int:
        return self._manager.get_kv_cache_stats().total.blocks_dropped

    def check_invariants(self) -> None:
        self._manager.check_invariants()


def retention(priorities: Sequence[int], tokens_per_block: int) -> Retention | None:
    if not priorities:
        return None
    edges = ((block * tokens_per_block, (block + 1) * tokens_per_block) for block in range(len(priorities)))
    return Retention([(start, end, priority, None) for (start, end), priority in zip(edges, priorities, strict=True)])
