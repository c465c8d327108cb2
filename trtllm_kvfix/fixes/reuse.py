"""What the bound manager can tell of a prompt's reuse, asked so that it can answer."""

from typing import Any


def cached_tokens(impl: Any, request: Any) -> int | None:
    """Tokens of the prompt's full blocks that are in the reuse tree now; None where this build or manager cannot tell.

    The bound methods assert that windows do not vary, which would end the executor's thread: then they are not called.
    """
    if not impl.enable_block_reuse or getattr(impl, "is_variable_window", True):
        return None
    if hasattr(impl, "count_reusable_blocks"):
        blocks = impl.count_reusable_blocks(prompt_tokens(request), request, False)
        return int(blocks * impl.tokens_per_block)
    if hasattr(impl, "find_new_context_block"):
        first_new = impl.find_new_context_block(prompt_tokens(request), request)
        if first_new is None:
            return int(request.prompt_len - request.prompt_len % impl.tokens_per_block)
        # Its key has the tokens of all blocks up to the first one that is missing, and of that one.
        return int(len(first_new.unique_tokens) - impl.tokens_per_block)
    return None


def prompt_tokens(request: Any) -> Any:
    """As the bound methods take them: a list of ints is refused."""
    tokens = request.get_unique_tokens(0)
    return tokens if len(tokens) == request.prompt_len else tokens[: request.prompt_len]
