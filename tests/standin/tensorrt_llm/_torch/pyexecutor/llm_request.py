"""A request as the executor sees it."""

from dataclasses import dataclass, field
from enum import Enum

from ..._standin.variant import since

Tokens = list[int]


@dataclass(frozen=True)
class UniqueToken:
    token_id: int
    token_extra_id: int = 0


class LlmRequestState(Enum):
    CONTEXT_INIT = "context init"
    GENERATION_IN_PROGRESS = "generation in progress"
    GENERATION_COMPLETE = "generation complete"
    DISAGG_GENERATION_INIT = "disagg generation init"
    DISAGG_GENERATION_TRANS_IN_PROGRESS = "disagg generation transfer in progress"
    DISAGG_CONTEXT_TRANS_IN_PROGRESS = "disagg context transfer in progress"


@dataclass(frozen=True)
class SamplingConfig:
    beam_width: int = 1


@dataclass(eq=False)
class LlmRequest:
    request_id: int
    input_tokens: Tokens
    max_new_tokens: int
    sampling_config: SamplingConfig = SamplingConfig()
    lora_task_id: int | None = None
    cache_salt_id: int | None = None
    state: LlmRequestState = LlmRequestState.CONTEXT_INIT
    is_dummy_request: bool = False
    context_current_position: int = 0
    prepopulated_prompt_len: int = 0
    if since("B2"):  # before, whole prompts are charged
        estimated_reusable_tokens: int = 0
    draft_tokens: Tokens = field(default_factory=list)
    py_draft_tokens: Tokens = field(default_factory=list)
    py_rewind_len: int = 0
    py_beam_width: int = 1
    use_draft_model: bool = False
    output_tokens: Tokens = field(default_factory=list)
    _chunk_size: int = 0

    @property
    def is_dummy(self) -> bool:
        return self.is_dummy_request

    @property
    def py_request_id(self) -> int:
        return self.request_id

    @property
    def prompt_len(self) -> int:
        return len(self.input_tokens)

    @property
    def py_prompt_len(self) -> int:
        return self.prompt_len

    @property
    def context_remaining_length(self) -> int:
        return self.prompt_len - self.context_current_position

    @property
    def context_chunk_size(self) -> int:
        return self._chunk_size

    @context_chunk_size.setter
    def context_chunk_size(self, size: int) -> None:
        self._chunk_size = min(size, self.context_remaining_length)

    @property
    def is_first_context_chunk(self) -> bool:
        return self.context_current_position == self.prepopulated_prompt_len

    @property
    def is_last_context_chunk(self) -> bool:
        return self.context_current_position + self.context_chunk_size == self.prompt_len

    @property
    def is_context_init_state(self) -> bool:
        return self.state is LlmRequestState.CONTEXT_INIT

    @property
    def is_generation_in_progress_state(self) -> bool:
        return self.state is LlmRequestState.GENERATION_IN_PROGRESS

    @property
    def is_generation_complete_state(self) -> bool:
        return self.state is LlmRequestState.GENERATION_COMPLETE

    @property
    def is_disagg_generation_init_state(self) -> bool:
        return self.state is LlmRequestState.DISAGG_GENERATION_INIT

    @property
    def is_in_transmission(self) -> bool:
        return self.state in (
            LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS,
            LlmRequestState.DISAGG_CONTEXT_TRANS_IN_PROGRESS,
        )

    def get_tokens(self, beam: int) -> Tokens:
        assert beam == 0, "the stand-in generates the same tokens for every beam"
        return self.input_tokens + self.output_tokens

    def get_unique_tokens(self, beam: int) -> list[UniqueToken]:
        return [UniqueToken(token) for token in self.get_tokens(beam)]

    def add_new_token(self, token: int) -> None:
        self.output_tokens.append(token)

    def set_prepopulated_prompt_len(self, prepopulated: int, tokens_per_block: int) -> None:
        """Known after allocation only. A chunk that is not the last must end on a block's boundary (surface 4.4)."""
        self.prepopulated_prompt_len = prepopulated
        if prepopulated == 0:
            return
        end = prepopulated + self._chunk_size
        if end < self.prompt_len:
            end -= end % tokens_per_block
        self.context_current_position = prepopulated
        self.context_chunk_size = end - prepopulated

    def pause(self, max_input_len: int | None) -> None:
        """Back to the beginning; what was generated stays with the request and would be prefilled again."""
        del max_input_len
        self.state = LlmRequestState.CONTEXT_INIT
        self.context_current_position = 0
        self.prepopulated_prompt_len = 0
        self._chunk_size = self.prompt_len

    def receive_cache(self) -> None:
        """The prompt's cache has come from another server, and its first token with it."""
        self.context_current_position = self.prompt_len
        self.prepopulated_prompt_len = self.prompt_len
        self.output_tokens.append(0)
        self.state = LlmRequestState.GENERATION_IN_PROGRESS

    def move_to_next_context_chunk(self) -> None:
        self.context_current_position += self.context_chunk_size
        self._chunk_size = 0
        if self.context_remaining_length == 0:
            self.state = LlmRequestState.GENERATION_IN_PROGRESS
