"""A call that raises has changed nothing: the digest, eviction order included, is the same as before."""

from collections.abc import Callable

import pytest

from trtllm_kvfix.native import BlockInFlight, BlockManager, OutOfBlocks, SequenceRequest

from .bad_calls import BAD_CALLS, Errors
from .scenes import BLOCK, begin, blocks_of, leave_behind, manager, prompt, push_to_host


def busy_manager() -> BlockManager:
    """A manager with blocks in every state: owned, cached, pinned, in flight, in host. Request 4's are in flight."""
    m = manager(primary=10, host=6, max_beam_width=2, events_max=100)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    push_to_host(m, 2, blocks=10)
    begin(m, 3, prompt(3, BLOCK + 1), beam_width=2)
    leave_behind(m, 5, prompt(5, BLOCK))
    m.pin_blocks_by_id(blocks_of(m, 3))
    m.add_sequence(SequenceRequest(4, [*prompt(1, 2 * BLOCK), 5]))
    return m


def prompts(*lengths: int) -> list[SequenceRequest]:
    return [SequenceRequest(100 + i, prompt(100 + i, length)) for i, length in enumerate(lengths)]


FAILURES: dict[str, tuple[Errors, Callable[[BlockManager], object]]] = {
    **BAD_CALLS,
    "a batch too large": (OutOfBlocks, lambda m: m.add_sequence_batch(prompts(BLOCK, 10 * BLOCK))),
    "a batch with a live id": (ValueError, lambda m: m.add_sequence_batch([*prompts(1), SequenceRequest(3, [1])])),
    "growth too large": (OutOfBlocks, lambda m: m.add_tokens([3, 4], [1, 10 * BLOCK])),
    "growth with one id unknown": (KeyError, lambda m: m.add_tokens([3, 99], [1, 1])),
    "growth with an id twice": (ValueError, lambda m: m.add_tokens([3, 3], [1, 1])),
    "growth with too few values": (ValueError, lambda m: m.add_tokens([4], [2], [1])),
    "growth with a negative value": (ValueError, lambda m: m.add_tokens([4], [1], [-1])),
    "rewind into the prompt": (ValueError, lambda m: m.rewind_kv_cache(4, 1)),
    "more computed than the prompt": (ValueError, lambda m: m.store_context_blocks(3, BLOCK + 2)),
    "removal with other tokens": (ValueError, lambda m: m.remove_sequence(4, tokens=[7] * (2 * BLOCK + 1))),
    "removal with too many tokens": (ValueError, lambda m: m.remove_sequence(4, tokens=[*prompt(1, 8), 5, 6])),
    "removal with a pin in flight": (BlockInFlight, lambda m: m.remove_sequence(4, pin=True)),
    "suspension in flight": (BlockInFlight, lambda m: m.suspend_sequence(4)),
    "a return of who never left": (ValueError, lambda m: m.resume_sequence(3)),
    "pins of one good and one bad id": (ValueError, lambda m: m.pin_blocks_by_id([held(m), 12345])),
    "unpins of one good and one bad id": (ValueError, lambda m: m.unpin_blocks_by_id([held(m), 12345])),
    "one unpin too many": (ValueError, lambda m: m.unpin_blocks_by_id([held(m), held(m)])),
    "an unpin in the other tier": (ValueError, lambda m: m.unpin_blocks_by_id([held(m)], tier="host")),
}


def held(m: BlockManager) -> int:
    return m.get_cache_block_ids(3)[0][0]


@pytest.mark.parametrize("name", FAILURES)
def test_nothing_has_changed_after(name: str) -> None:
    error, call = FAILURES[name]
    m = busy_manager()
    digest = m.digest()
    with pytest.raises(error):
        call(m)
    assert m.digest() == digest
    assert len(m.get_latest_events()) == len(busy_manager().get_latest_events())
    m.check_invariants()


def test_growth_that_fails_lets_nothing_leave_its_window() -> None:
    m = manager(primary=4, window_sizes=[BLOCK])
    for request in (1, 2):
        m.add_sequence(SequenceRequest(request, prompt(request, 2 * BLOCK)))
    digest = m.digest()
    with pytest.raises(OutOfBlocks):
        m.add_tokens([1, 2], [1, 10 * BLOCK])
    assert m.digest() == digest
    assert -1 not in m.get_cache_block_ids(1)[0]


def test_looking_changes_nothing() -> None:
    m = busy_manager()
    digest = m.digest()
    m.analyze_prefix_reuse(SequenceRequest(9, prompt(5, BLOCK + 1)))
    m.get_kv_cache_stats()
    m.get_request_stats(3)
    m.get_batch_cache_block_ids([3, 4])
    m.check_invariants()
    assert m.digest() == digest


def test_every_kind_of_change_shows_in_the_digest() -> None:
    """Otherwise the tests above could not fail."""
    m = busy_manager()
    digest = m.digest()
    changes: list[Callable[[], object]] = [
        lambda: m.add_token(3),
        lambda: m.rewind_kv_cache(3, 1),
        lambda: m.pin_blocks_by_id(blocks_of(m, 3)),
        lambda: m.complete(m.take_transfers().ticket),
        lambda: m.advance_time(1),
        lambda: m.add_sequence(SequenceRequest(6, [*prompt(5, BLOCK), *prompt(6, BLOCK)])),
        lambda: m.store_context_blocks(6, 2 * BLOCK),
        lambda: m.remove_sequence(6),
        lambda: m.unpin_blocks_by_id([held(m)]),
        lambda: m.remove_sequence(3, store=False),
        m.reset_reuse_state,
    ]
    for change in changes:
        change()
        assert m.digest() != digest
        digest = m.digest()


def test_the_digest_covers_the_order_of_eviction() -> None:
    digests = []
    for order in ((1, 2), (2, 1)):
        m = manager(primary=4)
        for family in (1, 2):
            begin(m, family, prompt(family, BLOCK))
        for family in order:
            m.remove_sequence(family)
        digests.append(m.digest())
    assert digests[0] != digests[1]
