"""Ask the bound manager how much of a prompt it will reuse, in the form that each build answers."""

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

from trtllm_kvfix.overlay.upstream import BINDINGS, Upstream

# A question copies tokens out of C++ and back, which costs more than the answer. So it is about the first block, and
# about so many times more only while all of that is cached: a prompt that finds nothing costs one block, at any length.
TIMES_MORE = 64

# A part of a prompt as the bound methods take it: they refuse a list of ints.
Bound = Callable[[int, int], list[Any]]


def cached_tokens(impl: Any, request: Any) -> int | None:
    """Tokens of the prompt's full blocks that are in the reuse tree now. None if this build or manager cannot say.

    The bound methods assert that windows do not vary, which would end the executor's thread: then they are not called.
    """
    if not impl.enable_block_reuse or getattr(impl, "is_variable_window", True):
        return None
    ask = _counted if hasattr(impl, "count_reusable_blocks") else _found
    if ask is _found and not hasattr(impl, "find_new_context_block"):
        return None
    bound = _bound_tokens_of(request)
    if bound is None:
        return None
    unit = impl.tokens_per_block
    cached = 0
    for tokens in _beginnings(bound, unit, request.prompt_len - request.prompt_len % unit):
        cached = ask(impl, tokens, request)
        if cached < len(tokens):
            break
    return cached


def _beginnings(bound: Bound, unit: int, whole: int) -> Iterator[list[Any]]:
    """The beginnings of a prompt that are full blocks, each longer than the one before."""
    tokens: list[Any] = []
    while len(tokens) < whole:
        tokens += bound(len(tokens), min(max(unit, TIMES_MORE * len(tokens)), whole))
        yield tokens


def _counted(impl: Any, tokens: list[Any], request: Any) -> int:
    return int(impl.count_reusable_blocks(tokens, request, False) * impl.tokens_per_block)


def _found(impl: Any, tokens: list[Any], request: Any) -> int:
    first_new = impl.find_new_context_block(tokens, request)
    if first_new is None:
        return len(tokens)
    if len(tokens) == impl.tokens_per_block:
        return 0  # what its key has need not be copied to be counted
    # Its key has the tokens of all blocks up to the first one that is missing, and of that one.
    return int(len(first_new.unique_tokens) - impl.tokens_per_block)


def _bound_tokens_of(request: Any) -> Bound | None:
    """Return a function that makes the prompt's tokens as the bound methods take them, or None if this build has none.

    A key that is made of ints has them. `get_unique_tokens` makes those of the whole prompt, and some builds of 1.2
    do not bind it.
    """
    make_key = Upstream().attribute(BINDINGS, "BlockKey")
    if make_key is None:
        has_them = hasattr(request, "get_unique_tokens")
        return (lambda begin, end: request.get_unique_tokens(0)[begin:end]) if has_them else None
    ids: list[int] = []

    def bound(begin: int, end: int) -> list[Any]:
        if begin == 0:  # one block; `get_tokens` copies the whole prompt
            made = make_key(tokens=list(map(request.get_token, repeat(0), range(end))))
        else:
            if not ids:
                ids.extend(request.get_tokens(0))
            made = make_key(tokens=ids[begin:end])
        tokens: list[Any] = made.unique_tokens
        return tokens

    return bound
