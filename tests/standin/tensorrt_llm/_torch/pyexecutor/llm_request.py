"""A request as the executor sees it: the bound one, and what Python adds to it."""

from typing import Any

from ..._standin.extension import bound, era
from ..._standin.variant import NAME, since

LlmRequestState: Any = bound.LlmRequestState
SamplingConfig: Any = bound.SamplingConfig
FinishReason: Any = bound.FinishReason
_Bound: Any = era.LlmRequest


Tokens = list[int]


class LlmRequest(_Bound):  # type: ignore[misc]  # by variant
    """C++ hands out copies of its own half alone: whoever is called from there sees no `py_` name."""

    def __init__(
        self,
        request_id: int,
        input_tokens: Tokens,
        max_new_tokens: int,
        *,
        sampling_config: Any = None,
        is_streaming: bool = False,
        lora_task_id: int | None = None,
        cache_salt_id: int | None = None,
        cache_salt: str | None = None,
        state: Any = None,
        is_dummy: bool = False,
        draft_tokens: Tokens | None = None,
        py_draft_tokens: Tokens | None = None,
        py_rewind_len: int = 0,
        py_multimodal_data: Any = None,
    ) -> None:
        super().__init__(
            request_id=request_id,
            max_new_tokens=max_new_tokens,
            input_tokens=list(input_tokens),
            sampling_config=SamplingConfig() if sampling_config is None else sampling_config,
            is_streaming=is_streaming,
            lora_task_id=lora_task_id,
            draft_tokens=draft_tokens,
            cache_salt_id=cache_salt_id,
        )
        if state is not None:
            self.state = state
        self.is_dummy_request = is_dummy
        self.py_request_id = request_id
        self.py_prompt_len = self.prompt_len
        self.py_draft_tokens = list(py_draft_tokens or [])
        self.py_rewind_len = py_rewind_len
        self.py_multimodal_data = py_multimodal_data
        self.py_beam_width = self.sampling_config.beam_width
        if since("D"):
            self.cache_salt = cache_salt

    if NAME == "B2":
        estimated_reusable_tokens = 0  # C++ keeps it; whether Python sees it there is not established

    @property
    def is_dummy(self) -> bool:
        return bool(self.is_dummy_request)

    @property
    def input_tokens(self) -> Tokens:
        """The prompt as it came; a pause makes a prompt of what was generated, too."""
        tokens: Tokens = self.get_tokens(0)[: self.orig_prompt_len]
        return tokens

    @property
    def output_tokens(self) -> Tokens:
        tokens: Tokens = self.get_tokens(0)[self.orig_prompt_len :]
        return tokens

    @property
    def is_in_transmission(self) -> bool:
        return self.state in (
            LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS,
            LlmRequestState.DISAGG_CONTEXT_TRANS_IN_PROGRESS,
        )

    if not since("D"):

        def is_generation_only_request(self) -> bool:
            """A method over the bound property of the same name; later builds leave the property alone."""
            return bool(_Bound.is_generation_only_request.__get__(self))

    def receive_cache(self) -> None:
        """The prompt's cache has come from another server, and its first token with it."""
        self.context_current_position = self.prompt_len
        self.add_new_token(0, 0)
        self.state = LlmRequestState.GENERATION_IN_PROGRESS


def append_token(request: LlmRequest, token: int) -> None:
    """The stand-in generates the same for every beam."""
    for beam in range(request.sampling_config.beam_width):
        request.add_new_token(token, beam)
