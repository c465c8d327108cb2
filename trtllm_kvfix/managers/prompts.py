"""What a request says of its blocks: their names (tokens, LoRA, salt, images), and how long they are to be kept.

Names are read once for each prompt and kept on it: while the request is made, when its tokens need not be copied out of
it again, and anew after it has been preempted. The bound request takes attributes, so the result stays with it.
Dummies, and requests whose blocks depend on more than such parts name, get a root of their own: no other request finds
their blocks.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from itertools import count
from types import FunctionType
from typing import Any, NamedTuple

from trtllm_kvfix.blocks.identity import multimodal_spans
from trtllm_kvfix.native import Prompt, Retention, SequenceRequest

_serials = count()
NOTED_RETENTION = "py_kvfix_retention"  # by a name that upstream copies to a request's children


class NotedRetention(NamedTuple):
    """How long a request's blocks are to be kept: plain values, which can be copied as upstream copies a request."""

    ranges: tuple[tuple[int, int | None, int, int | None], ...]
    decode_priority: int
    decode_duration_ms: int | None

    @classmethod
    def from_config(cls, config: Any) -> "NotedRetention":
        """From upstream's `KvCacheRetentionConfig`."""
        ranges = sorted(
            (each.token_start, each.token_end, each.priority, _milliseconds(each.duration_ms))
            for each in config.token_range_retention_configs
        )
        return cls(tuple(ranges), config.decode_retention_priority, _milliseconds(config.decode_duration_ms))

    def for_the_core(self) -> Retention:
        return Retention(list(self.ranges), self.decode_priority, self.decode_duration_ms)


def _milliseconds(duration: Any) -> int | None:
    """A binding shows C++'s durations as timedelta."""
    if duration is None:
        return None
    return round(duration / timedelta(milliseconds=1)) if isinstance(duration, timedelta) else int(duration)


def read_prompt(request: Any, tokens: Any = None) -> Prompt:
    """What the request says of its blocks now."""
    if tokens is None:
        tokens = request.get_tokens(0)
    images = _images(request, len(tokens))
    retention: NotedRetention | None = getattr(request, NOTED_RETENTION, None)
    return Prompt(
        request.request_id,
        tokens,
        lora_id=request.lora_task_id,
        salt=request.cache_salt_id if images is not None else f"private {next(_serials)}",
        extra_keys=images or (),
        retention=None if retention is None else retention.for_the_core(),
        is_private=images is None,
    )


def beginning(prompt: Prompt, count: int, *, and_then: int) -> SequenceRequest:
    """A prompt of the first tokens of this one and another one, under the same root."""
    own = prompt.sequence
    spans = [(begin, min(end, count), digest) for begin, end, digest in own.extra_keys if begin < count]
    tokens = [*own.tokens[:count], and_then]
    return SequenceRequest(own.request_id, tokens, lora_id=own.lora_id, salt=own.salt, extra_keys=spans)


def note_request(request: Any, given: Mapping[str, Any]) -> None:
    """Keep the retention and the prompt of a request that has just been made of these keywords.

    The tokens are a list only here: the bound request copies them, and makes a new list each time it is asked. It also
    takes how long its blocks are to be kept, and never shows that again.
    """
    wanted = given.get("kv_cache_retention_config")
    if wanted is not None:
        setattr(request, NOTED_RETENTION, NotedRetention.from_config(wanted))
    tokens = given.get("input_tokens")
    if tokens is not None:
        try:  # noqa: SIM105  a context costs more, and requests are many
            request._kvfix_prompt = read_prompt(request, tokens)
        except (TypeError, ValueError, OverflowError):
            pass  # admission refuses tokens that the core does not take; the code here does not


def prompt_of(request: Any) -> Prompt:
    return prompt_to_admit(request.request_id, request.get_num_tokens(0), request, request.is_dummy_request)


def prompt_to_admit(request_id: int, length: int, request: Any, is_dummy: bool) -> Prompt:
    """The prompt kept on the request, unless it has changed. Preemption makes a prompt longer, and a request becomes a
    dummy only after it was made.

    The caller passes the request's own answers: asking for them again costs a call into C++ each. Raises if the prompt
    contradicts them.
    """
    kept: Prompt | None = getattr(request, "_kvfix_prompt", None)
    if kept is None or kept.num_tokens != length or kept.request_id != request_id or (is_dummy and not kept.is_private):
        kept = read_prompt(request)
        if kept.num_tokens != length or kept.request_id != request_id:
            raise RuntimeError(
                f"request {request_id} is to be added with {length} tokens, but is request "
                f"{kept.request_id} with {kept.num_tokens}"
            )
        request._kvfix_prompt = kept
    return kept


def _images(request: Any, length: int) -> tuple[tuple[int, int, bytes], ...] | None:
    """(first token, end, digest) of each. None if the blocks depend on inputs that no digest covers, or may do so.

    What a request was at first, private or not, it stays: upstream drops the images and the positions when the prompt
    has been computed, so one with images then looks like a text, and a text with positions like one with images.
    """
    kept: Prompt | None = getattr(request, "_kvfix_prompt", None)
    if request.is_dummy_request or (kept is not None and kept.is_private):
        return None
    if getattr(request, "prompt_embedding_table", None) is not None:
        return None
    spans = multimodal_spans(request)
    if spans is None and _is_text_with_positions(request, deltas_will_do=kept is not None):
        return ()
    behind = 0
    for begin, end, digest in spans or ():
        if not (behind <= begin < end <= length and digest):
            return None
        behind = end
    return spans


def _is_text_with_positions(request: Any, *, deltas_will_do: bool) -> bool:
    """Models with mRoPE are told the positions of texts where others have images alone. The tokens determine these.

    When the prompt has been computed only the deltas of the positions are left, with images as without.
    """
    names = ("multimodal_hashes", "multimodal_positions", "multimodal_lengths", "multimodal_embedding")
    if any(getattr(request, name, None) is not None for name in names):
        return False
    data = getattr(request, "py_multimodal_data", None)
    positions = data.get("mrope_config") if isinstance(data, dict) and len(data) == 1 else None
    return isinstance(positions, dict) and (deltas_will_do or "mrope_position_ids" in positions)


def bound_half(request: Any) -> Any:
    """A copy of the request's part in C++, as C++ hands it out. Upstream's Python part hides some of its names."""
    kinds = [each for each in type(request).__mro__ if "__init__" in vars(each)]
    kind: Any = next(each for each in kinds if not isinstance(vars(each)["__init__"], FunctionType))
    return kind(request)


def tell_reuse(request: Any, reused: int, prompt_length: int, tokens_per_block: int) -> None:
    """Set the request's position after admission. Newer builds have a call for it, older ones two fields.

    Every chunk but the last ends on a block's boundary.
    """
    if _is_told_by_a_call(request.__class__):
        request.set_prepopulated_prompt_len(reused, tokens_per_block)
        return
    size: int = request.context_chunk_size
    if reused + size < prompt_length:
        size = (reused + size) // tokens_per_block * tokens_per_block - reused
    request.context_current_position = reused
    request.context_chunk_size = size  # which the request cuts to what remains


@cache
def _is_told_by_a_call(kind: type) -> bool:
    """Asked of the class once: looking for an attribute that an object lacks is expensive."""
    return hasattr(kind, "set_prepopulated_prompt_len")
