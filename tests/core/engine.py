"""A serving loop over one manager, with slots that remember what was written into them.

It plays by the rules of docs/block-manager.md: copies run in the order in which they were queued and before the
writes of their step; a sequence is stored only after its transfers have ended. Then every sequence must find its own
values in every slot that the manager gives it, whatever was evicted, offloaded, copied or lost on the way.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from trtllm_kvfix.native import BlockManager, OutOfBlocks, SequenceRequest, TransferItem

Cell = tuple[object, ...] | None  # what stands at one token's place: everything that its value depends on
Place = tuple[int | None, str, int]  # window size, tier, slot
TIERS_OF = {"offload": ("primary", "host"), "onboard": ("host", "primary"), "copy": ("primary", "primary")}


@dataclass
class Running:
    tokens: list[int]
    salt: str | None
    spoilt: bool = False  # computed from values that never came


@dataclass
class Pending:
    ticket: int
    request_ids: list[int]
    lost: bool


@dataclass
class Engine:
    manager: BlockManager
    rng: random.Random
    loss: float = 0.1
    memory: dict[Place, list[Cell]] = field(default_factory=dict)
    live: dict[int, Running] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    pinned: list[tuple[list[int], dict[Place, list[Cell]]]] = field(default_factory=list)
    next_id: int = 0
    reused: int = 0

    def step(self) -> None:
        action = self.rng.choice(
            [self.admit, self.admit, self.decode, self.decode, self.finish, self.settle, self.unpin]
        )
        action()
        self.manager.check_invariants()
        for request_id in self.idle():
            self.verify(request_id)
        for _, cells in self.pinned:
            assert all(self.memory[place] == content for place, content in cells.items()), "a pinned slot was written"

    def idle(self) -> list[int]:
        busy = {request_id for each in self.pending for request_id in each.request_ids}
        return [request_id for request_id in self.live if request_id not in busy]

    # -------------------------------------------------------------------------------------------- actions

    def admit(self) -> None:
        requests = []
        for _ in range(self.rng.randint(1, 3)):
            self.next_id += 1
            tokens = [self.rng.choice([0, 0, 0, 1])] * self.rng.randint(1, 9)
            tokens += [self.rng.randrange(3) for _ in range(self.rng.randrange(6))]
            salt = self.rng.choice([None, None, "tenant"])
            requests.append(SequenceRequest(self.next_id, tokens, salt=salt))
            self.live[self.next_id] = Running(tokens, salt)
        try:
            answer = self.manager.add_sequence_batch(requests, tokens_new_max=self.rng.choice([None, 12]))
        except OutOfBlocks:
            admitted = {}
        else:
            admitted = {each.request_id: each.tokens_reused for each in answer.admitted}
        for request in requests:
            if request.request_id not in admitted:
                del self.live[request.request_id]
        lost = self.run_copies(list(admitted))
        for request_id, tokens_reused in admitted.items():
            self.reused += tokens_reused
            self.live[request_id].spoilt = not self.is_whole(request_id, tokens_reused)
            assert lost or not self.live[request_id].spoilt, f"request {request_id} does not find what it reuses"
            self.write(request_id, tokens_reused)

    def decode(self) -> None:
        ids = self.idle()
        tokens = [self.rng.randrange(2) for _ in ids]
        try:
            computed = [len(self.live[request_id].tokens) for request_id in ids]
            self.manager.add_tokens(ids, [1] * len(ids), tokens, computed=computed)
        except OutOfBlocks:
            return
        self.run_copies([])
        for request_id, token in zip(ids, tokens, strict=True):
            self.live[request_id].tokens.append(token)
            self.write(request_id, len(self.live[request_id].tokens) - 1)

    def finish(self) -> None:
        if ids := self.idle():
            request_id = self.rng.choice(ids)
            computed = len(self.live[request_id].tokens)
            if self.rng.random() < 0.2:
                cells = {place: list(self.memory[place]) for place, _ in self.places(request_id)}
                self.pinned.append((self.manager.remove_sequence(request_id, pin=True, computed=computed), cells))
            else:
                self.manager.remove_sequence(request_id, computed=computed)
            del self.live[request_id]

    def settle(self) -> None:
        """Ends some ticket. Requests whose values never arrived are removed, and store what is still valid."""
        if not self.pending:
            return
        ended = self.pending.pop(self.rng.randrange(len(self.pending)))
        hurt: list[int] = []
        if ended.lost:
            hurt = self.manager.fail(ended.ticket)
        else:
            self.manager.complete(ended.ticket)
        assert hurt == sorted(i for i in ended.request_ids if self.live[i].spoilt), "whose values never came is told"
        for request_id in ended.request_ids:
            self.manager.store_context_blocks(request_id, len(self.live[request_id].tokens))
        for request_id in hurt:
            self.manager.remove_sequence(request_id)
            del self.live[request_id]

    def unpin(self) -> None:
        if self.pinned:
            self.manager.unpin_blocks_by_id(self.pinned.pop()[0])

    # -------------------------------------------------------------------------------------------- memory

    def run_copies(self, request_ids: list[int]) -> bool:
        """Returns whether the copies were lost, which the manager hears only when the ticket ends."""
        batch = self.manager.take_transfers()
        lost = len(batch) > 0 and self.rng.random() < self.loss
        for item in batch.items:
            self.run_copy(item, lost)
        if len(batch) > 0:
            self.pending.append(Pending(batch.ticket, request_ids, lost))
        else:
            self.manager.complete(batch.ticket)
        return lost

    def run_copy(self, item: TransferItem, lost: bool) -> None:
        tier_source, tier_target = TIERS_OF[item.kind]
        size = self.manager.config.tokens_per_block
        target: list[Cell] = [("lost", item.kind)] * size
        if not lost:
            source = self.memory[item.window_size, tier_source, item.slot_src]
            target[: item.tokens] = source[: item.tokens]
        self.memory[item.window_size, tier_target, item.slot_dst] = target

    def places(self, request_id: int) -> list[tuple[Place, int]]:
        """The sequence's held slots, each with the position of its first token."""
        size = self.manager.config.tokens_per_block
        windows = self.manager.get_kv_cache_stats().windows
        blocks = -(-len(self.live[request_id].tokens) // size)
        table = np.full((len(windows), 1, 2, blocks), -1, dtype=np.int32)
        self.manager.copy_batch_block_offsets(table, [request_id], 1, 0)
        return [
            ((window.window_size, "primary", int(slot)), position * size)
            for w, window in enumerate(windows)
            for position, slot in enumerate(table[w, 0, 0])
            if slot >= 0
        ]

    def cells(self, request_id: int, begin: int) -> list[Cell]:
        """The cells that belong into the block that begins there, as far as the sequence goes."""
        running = self.live[request_id]
        end = min(begin + self.manager.config.tokens_per_block, len(running.tokens))
        return [(running.salt, *running.tokens[: position + 1]) for position in range(begin, end)]

    def write(self, request_id: int, first: int) -> None:
        """Computes every position from `first` on."""
        size = self.manager.config.tokens_per_block
        for place, begin in self.places(request_id):
            block = self.memory.setdefault(place, [None] * size)
            for offset, cell in enumerate(self.cells(request_id, begin)):
                if begin + offset >= first:
                    block[offset] = ("spoilt", request_id) if self.live[request_id].spoilt else cell

    def verify(self, request_id: int, tokens: int | None = None) -> None:
        assert self.is_whole(request_id, tokens), f"request {request_id} does not find its own values"

    def is_whole(self, request_id: int, tokens: int | None = None) -> bool:
        """Whether the first `tokens` (all) positions hold what belongs there."""
        for place, begin in self.places(request_id):
            expected = self.cells(request_id, begin)
            if tokens is not None:
                expected = expected[: max(0, tokens - begin)]
            if expected and self.memory.get(place, [])[: len(expected)] != expected:
                return False
        return True
