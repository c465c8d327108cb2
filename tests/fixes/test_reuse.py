"""A question about reuse is asked of as few tokens as will do: each token of a question is copied twice."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.applied import standing_in
from tests.fixes.doubles import TOKENS_PER_BLOCK, Request, UniqueToken, context
from tests.standin.serving import Server
from trtllm_kvfix.fixes.reuse import TIMES_MORE, cached_tokens


class Bound:
    """Notes how many tokens each question has."""

    tokens_per_block = TOKENS_PER_BLOCK
    enable_block_reuse = True
    is_variable_window = False

    def __init__(self, cached: int) -> None:
        self.cached = cached
        self.asked: list[int] = []

    def _of(self, tokens: list[UniqueToken]) -> int:
        assert tokens == context(1, len(tokens)).get_unique_tokens(0), "not a beginning of the prompt"
        self.asked.append(len(tokens))
        return min(self.cached, len(tokens) - len(tokens) % TOKENS_PER_BLOCK)


class Counting(Bound):
    def count_reusable_blocks(self, tokens: list[UniqueToken], _request: Request, only_allocated: bool) -> int:
        assert only_allocated is False
        return self._of(tokens) // TOKENS_PER_BLOCK


class Finding(Bound):
    def find_new_context_block(self, tokens: list[UniqueToken], _request: Request) -> Any:
        end = self._of(tokens) + TOKENS_PER_BLOCK
        return SimpleNamespace(unique_tokens=tokens[:end]) if end <= len(tokens) else None


LONG = 2 * TIMES_MORE * TOKENS_PER_BLOCK + 3  # more than a second question covers, and a part of a block
SECOND = TIMES_MORE * TOKENS_PER_BLOCK


@pytest.mark.parametrize("telling", [Counting, Finding])
@pytest.mark.parametrize(
    ("prompt_len", "cached", "asked"),
    [
        (LONG, 0, [8]),
        (LONG, 8, [8, SECOND]),
        (LONG, 40, [8, SECOND]),
        (LONG, SECOND, [8, SECOND, LONG - 3]),
        (LONG, LONG - 3, [8, SECOND, LONG - 3]),
        (64, 56, [8, 64]),
        (64, 64, [8, 64]),
        (8, 8, [8]),
        (7, 0, []),
    ],
)
def test_more_is_asked_only_while_all_of_it_is_cached(
    telling: type[Bound], prompt_len: int, cached: int, asked: list[int]
) -> None:
    impl = telling(cached)
    assert cached_tokens(impl, context(1, prompt_len)) == cached
    assert impl.asked == asked


@pytest.mark.parametrize("variant", ["B", "B2"])
@pytest.mark.parametrize(("shared", "found"), [(0, 0), (3, 0), (4, 4), (23, 20), (24, 24), (300, 300)])
def test_bound_classes_find_as_much_of_a_prompt_as_when_asked_about_all_of_it(
    variant: str, shared: int, found: int
) -> None:
    with standing_in(variant):
        cache = {"max_tokens": 1024, "enable_block_reuse": True}
        server = Server({"max_seq_len": 512, "max_num_tokens": 512, "kv_cache_config": cache})
        server.serve([server.request(1, list(range(320)), 1)])
        prompt = [*range(shared), *range(1000, 1000 + 320 - shared)]
        assert cached_tokens(server.manager.impl, server.request(2, prompt, 1)) == found
        server.close()
