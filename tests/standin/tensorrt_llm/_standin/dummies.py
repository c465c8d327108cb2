"""Requests that hold blocks and mean nothing: warm-up, padding, tests (surface 1.4)."""

from collections.abc import Sequence
from typing import Any

from .._torch.pyexecutor.llm_request import LlmRequest, LlmRequestState
from .batches import ChunkLists
from .variant import MANGLED, since


def make(request_ids: Sequence[int], token_nums: Sequence[int] | None) -> list[LlmRequest]:
    lengths = [1] * len(request_ids) if token_nums is None else token_nums
    requests: list[LlmRequest] = []
    for request_id, length in zip(request_ids, lengths, strict=True):
        requests.append(LlmRequest(request_id, [1] * length, 1, is_dummy=True))
        requests[-1].context_chunk_size = length
    return requests


def add_v1(self: Any, request_ids: Sequence[int], token_nums: Sequence[int] | None, is_gen: bool) -> Any:
    if since("B") and self.get_num_free_blocks() < 1:
        return None
    requests = make(request_ids, token_nums)
    if since("C"):
        add = self.impl.admit_sequences if MANGLED else self.impl.add_sequence_batch
        add([(request.request_id, request.prompt_len, 1) for request in requests], requests)
    else:
        for request in requests:
            self.impl.add_sequence(request.request_id, request.prompt_len, 1, request)
    return requests if not is_gen else generating(requests)


def add_v2(self: Any, request_ids: Sequence[int], token_nums: Sequence[int] | None, is_gen: bool) -> Any:
    batch = ChunkLists()
    batch.reset_context_requests(make(request_ids, token_nums))
    self._allocate(batch)
    return batch.context_requests if not is_gen else generating(batch.context_requests)


def generating(requests: list[LlmRequest]) -> list[LlmRequest]:
    for request in requests:
        request.context_current_position = request.prompt_len
        request.state = LlmRequestState.GENERATION_IN_PROGRESS
    return requests


# D replaced `num_extra_decoding_steps` and added arguments behind it. Neither does anything for what is made here.


def earlier(add: Any) -> Any:
    def add_dummy_requests(
        self: Any,
        request_ids: Sequence[int],
        token_nums: Sequence[int] | None = None,
        is_gen: bool = False,
        prepare_resource: bool = True,
        max_num_draft_tokens: int = 0,
        use_mrope: bool = False,
        max_beam_width: int = 1,
        num_extra_decoding_steps: int = 0,
    ) -> Any:
        del max_num_draft_tokens, use_mrope, max_beam_width, num_extra_decoding_steps
        return add(self, request_ids, token_nums, is_gen) if prepare_resource else make(request_ids, token_nums)

    return add_dummy_requests


def later(add: Any) -> Any:
    def add_dummy_requests(
        self: Any,
        request_ids: Sequence[int],
        token_nums: Sequence[int] | None = None,
        is_gen: bool = False,
        prepare_resource: bool = True,
        max_num_draft_tokens: int = 0,
        use_mrope: bool = False,
        max_beam_width: int = 1,
        kv_reserve_draft_tokens: int | None = None,
        encoder_output_lens: Sequence[int] | None = None,
        capture_sampling_params: Any = None,
    ) -> Any:
        del max_num_draft_tokens, use_mrope, max_beam_width
        del kv_reserve_draft_tokens, encoder_output_lens, capture_sampling_params
        return add(self, request_ids, token_nums, is_gen) if prepare_resource else make(request_ids, token_nums)

    return add_dummy_requests


adder = later if since("D") else earlier
