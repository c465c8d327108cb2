"""Find out whether this build's `store_context_blocks` goes by the position, as it does since T#12673.

No name shows it. The test takes a prompt that has been computed to its end, so whatever is stored meanwhile is right.
It sets the position back to what the tree has already, stores the prompt, and looks at the tree. If nothing was added,
and something is with the true position, the build goes by the position. Until that was seen, and where it cannot be,
the fix assumes that the build does not.
"""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.fixes.reuse import cached_tokens

ATTEMPTS_MAX = 16  # prompts that showed nothing, such as short ones


class Observation:
    def __init__(self) -> None:
        self.store_obeys_position = False
        self._attempts_left = ATTEMPTS_MAX

    def observe(self, manager: Any, store: Callable[..., Any], request: Any) -> None:
        """Test with a request whose prompt has been computed."""
        if self._attempts_left == 0:
            return
        self._attempts_left -= 1
        answer = _stores_by_position(manager, store, request)
        if answer is not None:
            self.store_obeys_position = answer
            self._attempts_left = 0


def _stores_by_position(manager: Any, store: Callable[..., Any], request: Any) -> bool | None:
    """None where this prompt shows nothing."""
    before = cached_tokens(manager, request)
    if before is None or before + manager.tokens_per_block >= request.prompt_len:
        return None  # there is no block that could be added
    position = request.context_current_position
    request.context_current_position = before
    try:
        store(manager, request)
    finally:
        request.context_current_position = position
    if cached_tokens(manager, request) != before:
        return False
    store(manager, request)
    return True if cached_tokens(manager, request) != before else None
