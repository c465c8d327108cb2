"""Two managers whose later calls can differ have different digests, and two that cannot have equal ones."""

from collections.abc import Callable

import pytest

from trtllm_kvfix.native import BlockManager, Retention, SequenceRequest

from .scenes import BLOCK, manager, prompt


def stored(request: SequenceRequest, *, hash_bits: int = 128) -> BlockManager:
    m = manager(primary=8, hash_bits=hash_bits)
    m.add_sequence(request)
    m.store_context_blocks(1, len(request.tokens))
    m.remove_sequence(1)
    return m


def live(request: SequenceRequest) -> BlockManager:
    m = manager(primary=8)
    m.add_sequence(request)
    return m


def kept(decode_priority: int = 35, decode_duration_ms: int | None = None, until: int = BLOCK) -> SequenceRequest:
    retention = Retention([(0, until, 50, None)], decode_priority, decode_duration_ms)
    return SequenceRequest(1, prompt(1, BLOCK), retention=retention)


FULL = prompt(1, BLOCK)
PAIRS: dict[str, tuple[Callable[[], BlockManager], Callable[[], BlockManager]]] = {
    "tokens of an incomplete block": (
        lambda: stored(SequenceRequest(1, [*FULL, 1])),
        lambda: stored(SequenceRequest(1, [*FULL, 2])),
    ),
    "tokens under colliding hashes": (
        lambda: stored(SequenceRequest(1, [*FULL[:-1], 1]), hash_bits=1),
        lambda: stored(SequenceRequest(1, [*FULL[:-1], 3]), hash_bits=1),
    ),
    "the salt of an incomplete block": (
        lambda: stored(SequenceRequest(1, [1, 2], salt="one")),
        lambda: stored(SequenceRequest(1, [1, 2], salt="other")),
    ),
    "the extra keys of an incomplete block": (
        lambda: stored(SequenceRequest(1, [1, 2], extra_keys=[(0, 2, b"one")])),
        lambda: stored(SequenceRequest(1, [1, 2], extra_keys=[(0, 2, b"other")])),
    ),
    "a live prompt": (
        lambda: live(SequenceRequest(1, [*FULL, 1])),
        lambda: live(SequenceRequest(1, [*FULL, 2])),
    ),
    "a live request's salt": (
        lambda: live(SequenceRequest(1, FULL, salt="one")),
        lambda: live(SequenceRequest(1, FULL, salt="other")),
    ),
    "a live request's extra keys": (
        lambda: live(SequenceRequest(1, FULL, extra_keys=[(0, 2, b"one")])),
        lambda: live(SequenceRequest(1, FULL, extra_keys=[(1, 2, b"one")])),
    ),
    "the priority of blocks to come": (lambda: live(kept(40)), lambda: live(kept(41))),
    "the duration of blocks to come": (lambda: live(kept(40, 100)), lambda: live(kept(40, 200))),
    "numbers": (lambda: live(SequenceRequest(1, FULL)), lambda: refreshed(live(SequenceRequest(1, FULL)))),
}


def refreshed(m: BlockManager) -> BlockManager:
    m.refresh_blocks()
    return m


@pytest.mark.parametrize("what", PAIRS)
def test_a_difference_that_a_later_call_can_see_shows_in_the_digest(what: str) -> None:
    one, other = PAIRS[what]
    assert one().digest() != other().digest()
    assert one().digest() == one().digest()
    assert other().digest() == other().digest()
