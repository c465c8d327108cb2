"""Cut a batch back to the tokens that one forward step takes: plan with numbers, carry out, report (H3).

The scheduler charges for the reuse that it expects; when blocks are claimed, less may be found. Upstream then fails an
assertion in the executor's thread. This fix takes the excess off the batch, from the back: chunks get smaller where
prefill is chunked, else whole requests wait for the next iteration.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_kvfix.fixes.batches import (
    Contexts,
    cannot_be_split,
    context_tokens,
    generation_tokens,
    replace_contexts,
)
from trtllm_kvfix.log import log
from trtllm_kvfix.metrics import counters, flight

Says = Callable[[Any], bool]  # something about a request


@dataclass(frozen=True)
class Limits:
    max_num_tokens: int
    chunked_prefill: bool
    tokens_per_block: int
    runtime_tokens: Callable[[], int] | None = None  # of a generation whose drafts are on the device


@dataclass(frozen=True)
class Plan:
    """Planned changes, and the tokens before and after them. Making a plan changes nothing."""

    chunks: tuple[tuple[Any, int], ...]  # requests whose chunk ends earlier, with its new size
    put_off: tuple[Any, ...]
    tokens_before: int
    tokens: int

    def __bool__(self) -> bool:
        return bool(self.chunks or self.put_off)

    def decision(self) -> object:
        """The same on every rank that plans alike."""
        trimmed = [(request.py_request_id, size) for request, size in self.chunks]
        return trimmed, [request.py_request_id for request in self.put_off]


def batch_tokens(batch: Any, limits: Limits, spared: Says) -> int:
    contexts = sum(context_tokens(request) for request in batch.context_requests if not spared(request))
    return contexts + sum(generation_tokens(request, limits.runtime_tokens) for request in batch.generation_requests)


def plan(batch: Any, limits: Limits, *, spared: Says, stays: Says, order: list[Any] | None = None) -> Plan:
    """`spared` requests are left alone and cost nothing; those of which `stays` is true are not put off.

    order: the batch's context requests in the order of their claims to the budget; by default as they stand.
    """
    contexts = list(batch.context_requests) if order is None else order
    before = tokens = batch_tokens(batch, limits, spared)
    chunks: list[tuple[Any, int]] = []
    put_off: list[Any] = []
    for request in reversed([request for request in contexts if not spared(request)]):
        excess = tokens - limits.max_num_tokens
        if excess <= 0:
            break
        cost = context_tokens(request)
        size = _shorter(request, excess, limits.tokens_per_block) if limits.chunked_prefill else 0
        if size:
            chunks.append((request, size))
            tokens -= cost - size
        elif not stays(request) and len(put_off) + 1 < len(contexts) + len(batch.generation_requests):
            put_off.append(request)  # never an empty batch
            tokens -= cost
    return Plan(tuple(chunks), tuple(put_off), before, tokens)


def _shorter(request: Any, excess: int, tokens_per_block: int) -> int:
    """The size of a chunk that ends earlier, on a block's boundary; 0 where nothing would be left of it."""
    if cannot_be_split(request):
        return 0
    begin = request.context_current_position
    end = begin + context_tokens(request) - excess
    return int(max(0, end - end % tokens_per_block - begin))


class Made:
    """A plan that has been carried out, which can be taken back. One that fails half-way changes nothing."""

    def __init__(self, batch: Any, what: Plan) -> None:
        self._contexts = Contexts(batch)
        self._chunks = [(request, request.context_chunk_size) for request, _ in what.chunks]
        try:
            for request, size in what.chunks:
                request.context_chunk_size = size
            replace_contexts(batch, [request for request in batch.context_requests if request not in what.put_off])
        except Exception:
            self.take_back()
            raise

    def take_back(self) -> None:
        for request, size in self._chunks:
            request.context_chunk_size = size
        self._contexts.put_back()


def tell(what: Plan, limits: Limits) -> None:
    """Count and log each batch that was changed, or should have been."""
    counters.budget_trims.add(len(what.chunks))
    counters.budget_deferrals.add(len(what.put_off))
    counters.budget_trimmed_tokens.add(what.tokens_before - what.tokens)
    if what:
        flight.note(flight.BATCH_CUT, what.tokens_before, what.tokens, len(what.chunks), len(what.put_off))
        log.info(
            "batch of %d tokens exceeds max_num_tokens %d: chunks made smaller of requests %s, put off requests %s, "
            "%d tokens left",
            what.tokens_before,
            limits.max_num_tokens,
            [request.py_request_id for request, _ in what.chunks],
            [request.py_request_id for request in what.put_off],
            what.tokens,
        )
    if what.tokens > limits.max_num_tokens:
        counters.budget_overruns.add()
        log.error(
            "batch of %d tokens exceeds max_num_tokens %d and nothing more can be put off; usual cause: generation "
            "requests alone, one prompt that is larger than the limit without chunked prefill, or a connector's loads",
            what.tokens,
            limits.max_num_tokens,
        )
