"""What the bound manager reports about a prompt's reuse, asked in the form that each build answers."""

from typing import Any

from trtllm_kvfix.overlay.upstream import BINDINGS, Upstream


def cached_tokens(impl: Any, request: Any) -> int | None:
    """Tokens of the prompt's full blocks that are in the reuse tree now; None where this build or manager cannot tell.

    The bound methods assert that windows do not vary, which would end the executor's thread: then they are not called.
    """
    if not impl.enable_block_reuse or getattr(impl, "is_variable_window", True):
        return None
    counts = hasattr(impl, "count_reusable_blocks")
    if not counts and not hasattr(impl, "find_new_context_block"):
        return None
    tokens = prompt_tokens(request)
    if tokens is None:
        return None
    if counts:
        return int(impl.count_reusable_blocks(tokens, request, False) * impl.tokens_per_block)
    first_new = impl.find_new_context_block(tokens, request)
    if first_new is None:
        return int(request.prompt_len - request.prompt_len % impl.tokens_per_block)
    # Its key has the tokens of all blocks up to the first one that is missing, and of that one.
    return int(len(first_new.unique_tokens) - impl.tokens_per_block)


def prompt_tokens(request: Any) -> Any:
    """The prompt's tokens as the bound methods take them, which refuse a list of ints; None if this build cannot make
    them.

    Some builds of 1.2 bind no `get_unique_tokens`. There a key that is made of ints has them.
    """
    if hasattr(request, "get_unique_tokens"):
        tokens = request.get_unique_tokens(0)
    else:
        make_key = Upstream().attribute(BINDINGS, "BlockKey")
        if make_key is None:
            return None
        tokens = make_key(tokens=list(request.get_tokens(0))).unique_tokens
    return tokens if len(tokens) == request.prompt_len else tokens[: request.prompt_len]
