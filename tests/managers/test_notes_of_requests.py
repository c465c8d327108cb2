"""A request's tokens are read while it is made. What changes behind that is seen when it is admitted."""

from collections.abc import Sequence
from typing import Any

from tests.bound.making import make_request
from tests.managers.making import Bench, bench, python_half
from trtllm_kvfix.managers.constructors import noting


def noting_class(b: Bench, reads: list[int]) -> Any:
    """Upstream's Python half of the request, as the overlay leaves it."""

    base: Any = python_half(b.era)

    class Request(base):  # type: ignore[misc]
        __init__ = noting(base.__init__)

        def get_tokens(self, beam: int) -> Any:
            reads.append(self.request_id)
            return super().get_tokens(beam)

    return Request


def request(b: Bench, reads: list[int], request_id: int, tokens: Sequence[int], **given: Any) -> Any:
    return make_request(b.era, request_id, tokens, base=noting_class(b, reads), **given)


def test_admission_does_not_read_the_tokens_out_of_the_request_again() -> None:
    reads: list[int] = []
    with bench() as b:
        b.served(1, range(10))
        mine = request(b, reads, 2, range(10))
        b.prepare([mine])
        assert b.reused(mine) == 9
        assert reads == []
        unnoted = b.request(3, range(10))
        b.prepare([unnoted])
        assert b.reused(unnoted) == 8, "of a request that nobody has noted they are read"


def test_a_request_that_becomes_a_dummy_finds_and_leaves_nothing() -> None:
    with bench() as b:
        b.served(1, range(8))
        mine = request(b, [], 2, range(8))
        mine.is_dummy_request = True
        b.prepare([mine])
        assert b.reused(mine) == 0
        b.impl.remove_sequence(2, mine, False)


def test_a_request_that_was_preempted_comes_with_what_it_has_generated() -> None:
    reads: list[int] = []
    with bench() as b:
        mine = request(b, reads, 1, range(7))
        b.prepare([mine])
        b.computed(mine, token=50)
        b.prepare(generations=[mine])
        mine.add_new_token(51, 0)
        b.impl.remove_sequence(1, mine, False)
        mine.pause(64)
        b.prepare([mine])
        assert reads, "its prompt is another"
        assert b.impl.get_token_count(1) == 9
        assert b.reused(mine) == 8


def test_salts_are_noted_with_the_tokens() -> None:
    with bench() as b:
        b.served(1, range(8))
        salted = request(b, [], 2, range(8), cache_salt_id=7)
        b.prepare([salted])
        assert b.reused(salted) == 0


def test_tokens_that_the_core_refuses_do_not_end_who_makes_the_request() -> None:
    class Request:
        def __init__(self, **_: Any) -> None:
            self.request_id, self.lora_task_id, self.cache_salt_id = 1, None, None
            self.is_dummy_request, self.multimodal_hashes = False, None

    Request.__init__ = noting(Request.__init__)  # type: ignore[method-assign]
    Request(input_tokens=[2**40])
    Request(input_tokens="text")
