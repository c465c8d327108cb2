"""Attacks of a hostile tenant on a block manager, each beside a benign tenant who asks for as much.

An attack prepares a manager of a size and returns the call that is timed. `seed` is the manager's: an attack on the
indexes comes through only where it is the one that the attacker aimed at.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from public_functions import cancelling_word, rank_of_child, rank_seed
from workloads import SEED, TOKEN_END, TOKEN_MIN, Tokens

from trtllm_kvfix.native import BlockManager, BlockManagerConfig, Retention, SequenceRequest

AIMED_AT, DRAWN = (
    3,
    1 << 99,
)  # seeds: the attacker's guess (one whose cancelling tokens are not negative), and the manager's
TOKENS_PER_BLOCK = 4
LATER = 1 << 40  # ids of requests behind those that fill the cache

Call = Callable[[], object]


class Attack(NamedTuple):
    name: str
    sizes: tuple[int, ...]  # doubling
    prepare: Callable[[int, bool, int], Call]  # size, hostile, the manager's seed
    aims_at_seed: bool = False
    flat: bool = False  # the size is what is there, and not what is asked for


def manager_of(seed: int, blocks: int, **options: Any) -> BlockManager:
    return BlockManager(
        BlockManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, blocks_primary=blocks, seed=seed, **options)
    )


def request(number: int, tokens: Any, retention: Retention | None = None) -> SequenceRequest:
    return SequenceRequest(number, np.asarray(tokens, np.int32), retention=retention)


def random_tokens(count: int, number: int) -> Tokens:
    random = np.random.Generator(np.random.PCG64([SEED, number]))
    return random.integers(TOKEN_MIN, TOKEN_END, size=count, dtype=np.int32)


def cache(manager: BlockManager, number: int, tokens: Any, retention: Retention | None = None) -> None:
    manager.add_sequence(request(number, tokens, retention))
    manager.complete(manager.take_transfers().ticket)
    manager.store_context_blocks(number, len(tokens))
    manager.remove_sequence(number)


def asking(manager: BlockManager, prompts: Iterable[Any]) -> Call:
    requests = [request(LATER + number, prompt) for number, prompt in enumerate(prompts)]

    def ask() -> None:
        for each in requests:
            manager.analyze_prefix_reuse(each)

    return ask


def colliding_prompts(size: int, hostile: bool, seed: int) -> Call:
    """Prompts whose first block has one hash under the seed that the attacker guessed."""
    manager = manager_of(seed, size, partial_reuse=False)  # else each of them would take the last one's block over
    words = np.frombuffer(cancelling_word(AIMED_AT).to_bytes(8, "little"), np.int32)
    contents = random_tokens(size * TOKENS_PER_BLOCK, size).reshape(size, TOKENS_PER_BLOCK)
    if hostile:
        contents[:, :2] = words
        contents[:, 2] = np.arange(size)
        contents[:, 3] = 0
    for number in range(size):
        cache(manager, number, contents[number])
    return asking(manager, (np.append(content, 0) for content in contents))


def degenerate_siblings(size: int, hostile: bool, seed: int) -> Call:
    """Children of one parent whose index would be a list if their ranks were those of the guessed seed."""
    manager = manager_of(seed, size)
    ranks = rank_seed(AIMED_AT)
    order = np.argsort([rank_of_child(block, ranks) for block in range(size)])[::-1] if hostile else np.arange(size)
    contents = np.zeros((size, TOKENS_PER_BLOCK), np.int32)
    contents[order, 0] = np.arange(size)
    for number in range(size):
        cache(manager, number, contents[number])
    last = contents[order[-(size // 8) :]]
    last[:, 1] = 1  # half of a block is looked for among all children
    return asking(manager, last)


def parked_parents(size: int, hostile: bool, _: int) -> Call:
    """Parents that come up before their children, and whose children go in the opposite order."""
    manager = manager_of(DRAWN, 2 * size)
    low = Retention([(0, TOKENS_PER_BLOCK, 0, None)])
    for number in range(size):
        cache(manager, number, random_tokens(2 * TOKENS_PER_BLOCK, number), low)
    for number in reversed(range(size)) if hostile else range(size):
        head = random_tokens(2 * TOKENS_PER_BLOCK, number)[:TOKENS_PER_BLOCK]
        manager.add_sequence(request(LATER, np.append(head, 0)))
        manager.remove_sequence(LATER, store=False)
    evicting = request(LATER + 1, np.full(2 * size * TOKENS_PER_BLOCK, 1))
    return lambda: manager.add_sequence(evicting)


def one_shared_leaf(size: int, hostile: bool, _: int) -> Call:
    """A batch of which each request wants a part of the same cached block; the benign one has a block for each."""
    manager = manager_of(DRAWN, 4 * size)
    for number in range(1 if hostile else size):
        cache(manager, number, [number, 1, 2, 3])
    batch = [request(LATER + number, [0 if hostile else number, 1, 9, number]) for number in range(size)]
    return lambda: manager.add_sequence_batch(batch)


def retention_ranges(size: int, hostile: bool, _: int) -> Call:
    """A range for each block of a long prompt, and one range for all of them."""
    manager = manager_of(DRAWN, size)
    ends = [TOKENS_PER_BLOCK * block for block in range(size + 1)]
    ranges = [(begin, end, 40, None) for begin, end in pairwise(ends)]
    retention = Retention(ranges if hostile else [(0, ends[-1], 40, None)])
    asked = request(LATER, np.ones(ends[-1]), retention)

    def admit() -> None:
        manager.add_sequence(asked)
        manager.store_context_blocks(LATER, ends[-1])
        manager.remove_sequence(LATER)

    return admit


def after_a_failed_ticket(size: int, hostile: bool, _: int) -> Call:
    """A prompt stored block by block, where a transfer has failed before."""
    manager = manager_of(DRAWN, size + 8)
    fail_one(manager, failing=hostile)
    manager.add_sequence(request(LATER, random_tokens(size * TOKENS_PER_BLOCK, 1)))

    def store() -> None:
        for block in range(1, size + 1):
            manager.store_context_blocks(LATER, block * TOKENS_PER_BLOCK)

    return store


def fail_one(manager: BlockManager, *, failing: bool = True) -> None:
    cache(manager, 0, [1, 2, 3, 4])
    manager.add_sequence(request(1, [1, 2, 3, 4, 5]))
    manager.add_sequence(request(2, [1, 2, 3, 5]))  # copies a part
    ticket = manager.take_transfers().ticket
    if ticket == 0:
        raise SystemExit("the second request copies nothing: no transfer to fail")
    if failing:
        manager.fail(ticket)
    else:
        manager.complete(ticket)
    for number in (1, 2):
        manager.remove_sequence(number, store=False)


def failing_among_many(size: int, hostile: bool, _: int) -> Call:
    """Transfers that fail while so many sequences of eight blocks live; the benign ones complete."""
    manager = manager_of(DRAWN, 8 * size + 512)
    for number in range(size):
        manager.add_sequence(request(number, random_tokens(8 * TOKENS_PER_BLOCK, number)))
    cache(manager, LATER, [1, 2, 3, 4])
    manager.add_sequence(request(LATER, [1, 2, 3, 4, 5]))
    tickets = []
    for number in range(64):
        manager.add_sequence(request(LATER + 1 + number, [1, 2, 3, 5]))
        tickets.append(manager.take_transfers().ticket)
    end = manager.fail if hostile else manager.complete

    def end_all() -> None:
        for ticket in tickets:
            end(ticket)

    return end_all


def empty_tickets(size: int, hostile: bool, _: int) -> Call:
    """Tickets of nothing that never end; the benign ones do."""
    manager = manager_of(DRAWN, 8)

    def take() -> None:
        for _ in range(size):
            manager.take_transfers()

    def take_and_end() -> None:
        for _ in range(size):
            manager.complete(manager.take_transfers().ticket)

    return take if hostile else take_and_end


def many_windows(size: int, hostile: bool, _: int) -> Call:
    """A prompt in so many windows, its blocks pinned by their ids; benign: as many managers with a window each."""
    blocks, prompt = 256, random_tokens(128 * TOKENS_PER_BLOCK, 1)
    sizes = [256 + window for window in range(size)]
    groups = [sizes] if hostile else [[window] for window in sizes]
    managers = [windowed(group, blocks) for group in groups]
    asked = [request(number, prompt) for number in range(8)]

    def pass_through() -> None:
        for manager, windows in zip(managers, groups, strict=True):
            for each in asked:
                manager.add_sequence(each)
                manager.store_context_blocks(each.request_id, each.num_tokens)
                manager.add_token(each.request_id, 4)
                for window in windows:
                    row = manager.get_batch_cache_block_ids([each.request_id], window)[0][0]
                    held = [block for block in row if block != -1]
                    manager.pin_blocks_by_id(held)
                    manager.unpin_blocks_by_id(held)
                manager.remove_sequence(each.request_id)

    return pass_through


def windowed(sizes: list[int], blocks: int) -> BlockManager:
    return BlockManager(
        BlockManagerConfig(
            tokens_per_block=TOKENS_PER_BLOCK,
            window_sizes=sizes,
            blocks_primary=dict.fromkeys(sizes, blocks),
            seed=DRAWN,
        )
    )


ATTACKS = (
    Attack("colliding prompts", (2048, 4096, 8192, 16384), colliding_prompts, aims_at_seed=True),
    Attack("degenerate siblings", (2048, 4096, 8192, 16384), degenerate_siblings, aims_at_seed=True),
    Attack("parked parents", (2048, 4096, 8192, 16384), parked_parents),
    Attack("one shared leaf", (1024, 2048, 4096, 8192), one_shared_leaf),
    Attack("retention ranges", (4096, 8192, 16384, 32768), retention_ranges),
    Attack("after a failed ticket", (2048, 4096, 8192, 16384), after_a_failed_ticket),
    Attack("failing among many", (512, 1024, 2048, 4096), failing_among_many, flat=True),
    Attack("empty tickets", (1 << 18, 1 << 19, 1 << 20, 1 << 21), empty_tickets),
    Attack("windows", (16, 32, 64, 128), many_windows),
)
