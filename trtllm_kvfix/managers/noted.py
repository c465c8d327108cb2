"""What is noted on a request while it is made, because it is dearer to learn later, or cannot be learnt at all.

Its tokens are a list only in the constructor: the bound request copies them, and hands out a new list each time. How
long its blocks are to be kept it takes and never shows again.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.managers import retention
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import LLM_REQUEST

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation

TRIGGER = LLM_REQUEST
TOKENS = "input_tokens"


def replacements(active: "Activation") -> list[Replacement]:
    if active.settings.manager != "native":
        return []
    return [Replacement(Seam(TRIGGER, "LlmRequest.__init__"), noting)]


def noting(make: Callable[..., None]) -> Callable[..., None]:
    from trtllm_kvfix.managers.prompts import note_prompt  # noqa: PLC0415  needs the extension

    @wraps(make)
    def make_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        wanted = kwargs.get(retention.KEYWORD)
        if wanted is not None:
            retention.note(self, wanted)
        if kwargs.get(TOKENS) is not None:
            # Tokens that the core does not take are refused when the request is admitted, and not here.
            with suppress(TypeError, ValueError, OverflowError):
                note_prompt(self, kwargs[TOKENS])

    return make_and_note
