"""The calls of a pair beside admission, growth, pins and transfers."""

from .pair import Pair, free_blocks


def suspend(pair: Pair, request_id: int) -> bool:
    got = pair.both(lambda: pair.model.suspend_sequence(request_id), lambda: pair.core.suspend_sequence(request_id))
    assert got is None or got[0] == got[1]
    return got is not None


def resume(pair: Pair, request_id: int) -> bool:
    asked = pair.both(lambda: pair.model.blocks_to_resume(request_id), lambda: pair.core.blocks_to_resume(request_id))
    free = free_blocks(pair.core)
    got = pair.both(lambda: pair.model.resume_sequence(request_id), lambda: pair.core.resume_sequence(request_id))
    if got is not None:
        assert asked is not None and asked[0] == asked[1] and got[0] == got[1]
        assert [before - taken for before, taken in zip(free, asked[1], strict=True)] == free_blocks(pair.core)
    return got is not None
