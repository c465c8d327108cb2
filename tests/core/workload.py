"""A seeded stream of calls that visits every state. Run as a module it prints the digests on the way."""

import random
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from trtllm_kvfix.native import (
    BlockInFlight,
    BlockManager,
    BlockManagerConfig,
    OutOfBlocks,
    Retention,
    SequenceRequest,
)

BLOCK = 4


def make_manager(primary: int = 60, host: int = 40) -> BlockManager:
    return BlockManager(
        BlockManagerConfig(
            tokens_per_block=BLOCK,
            blocks_primary=primary,
            blocks_host=host,
            window_sizes=[12, 64],
            max_beam_width=2,
            events_max=1000,
            seed=1,
        )
    )


@dataclass
class Churn:
    """One caller of a manager. Several may share it, each with request ids of its own."""

    manager: BlockManager
    rng: random.Random
    first_id: int = 0
    moves_time: bool = True
    live: list[int] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    pins: list[list[tuple[int, str]]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)  # blocks
    now_ms: int = 0
    refused: int = 0

    def run(self, operations: int) -> None:
        actions = [
            self.admit,
            self.grow,
            self.grow,
            self.store,
            self.remove,
            self.pin,
            self.unpin,
            self.move,
            self.read,
        ]
        for _ in range(operations):
            try:
                self.rng.choice(actions)()
            except (OutOfBlocks, BlockInFlight):
                self.refused += 1

    def request(self) -> SequenceRequest:
        self.first_id += 1
        rng = self.rng
        tokens = [rng.randrange(6)] * rng.randint(1, 20) + [rng.randrange(3) for _ in range(rng.randint(0, 5))]
        keep = Retention([(0, 8, rng.choice([10, 35, 60]), rng.choice([None, 5]))]) if rng.random() < 0.3 else None
        salt = rng.choice([None, None, None, "tenant"])
        return SequenceRequest(self.first_id, tokens, beam_width=rng.choice([1, 1, 1, 2]), salt=salt, retention=keep)

    def admit(self) -> None:
        if len(self.live) < 6:
            batch = [self.request() for _ in range(self.rng.randint(1, 3))]
            answer = self.manager.add_sequence_batch(batch, tokens_new_max=self.rng.choice([None, 30]))
            self.live += [each.request_id for each in answer.admitted]
            self.lengths |= {each.request_id: each.tokens_reused + each.tokens_new for each in answer.admitted}

    def grow(self) -> None:
        counts = [self.rng.randint(0, 3) for _ in self.live]
        self.manager.add_tokens(self.live, counts, computed=[self.lengths[each] for each in self.live])
        for request_id, count in zip(self.live, counts, strict=True):
            self.lengths[request_id] += count

    def store(self) -> None:
        if self.live:
            self.manager.store_context_blocks(self.rng.choice(self.live), 1)

    def remove(self) -> None:
        if self.live:
            request_id = self.live[self.rng.randrange(len(self.live))]
            store = self.rng.random() < 0.9
            self.manager.remove_sequence(request_id, store=store, computed=self.lengths.pop(request_id))
            self.live.remove(request_id)

    def pin(self) -> None:
        """Blocks of its own requests, or what became of those that it has heard of."""
        for request_id in self.live:
            [*_, last] = self.manager.get_cache_block_ids(request_id, 64)
            self.seen += [block for block in last if block >= 0]
        del self.seen[:-50]
        blocks = self.rng.sample(self.seen, min(3, len(self.seen)))
        with suppress(ValueError):  # one of them holds nothing any more
            places = self.manager.pin_blocks_by_id(blocks)
            self.pins.append([(block, tier) for block, (_, tier) in zip(blocks, places, strict=True)])

    def unpin(self) -> None:
        for block_id, tier in self.pins.pop() if self.pins else []:
            self.manager.unpin_blocks_by_id([block_id], tier=tier)

    def move(self) -> None:
        ticket = self.manager.take_transfers().ticket
        if self.rng.random() < 0.9:
            self.manager.complete(ticket)
        else:
            self.manager.fail(ticket)
        if self.moves_time:
            self.now_ms += self.rng.randint(0, 2)
            self.manager.advance_time(self.now_ms)

    def read(self) -> None:
        self.manager.get_kv_cache_stats()
        self.manager.get_latest_events()
        self.manager.refresh_blocks()
        self.manager.analyze_prefix_reuse(self.request())

    def finish(self) -> None:
        while self.pins:
            self.unpin()
        while self.live:
            self.remove()


def main() -> None:
    seed, operations = (int(word) for word in sys.argv[1:])
    churn = Churn(make_manager(), random.Random(seed))
    for _ in range(10):
        churn.run(operations // 10)
        churn.manager.check_invariants()
        sys.stdout.write(f"{churn.manager.digest()} ")
    stats = churn.manager.get_kv_cache_stats().total
    assert min(stats.blocks_reused, stats.blocks_offloaded, stats.blocks_onboarded, stats.blocks_dropped) > 100
    assert min(churn.refused, stats.blocks_copied, stats.blocks_failed, stats.blocks_reused_partial) > 100


if __name__ == "__main__":
    main()
