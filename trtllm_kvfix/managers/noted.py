"""Notes on a request, taken while it is made: later they would cost more, or could not be had at all.

The tokens are a list only in the constructor: the bound request copies them, and makes a new list each time it is
asked. It also takes how long its blocks are to be kept, and never shows that again.
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
# Admission refuses tokens that the core does not take; the code here does not.
_REFUSED_LATER = suppress(TypeError, ValueError, OverflowError)


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
            with _REFUSED_LATER:
                note_prompt(self, kwargs[TOKENS])

    return make_and_note
