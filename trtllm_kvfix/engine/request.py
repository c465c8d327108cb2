"""One request, with the names by which upstream's managers read the bound `LlmRequest`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace


@dataclass(eq=False)
class Request:
    request_id: int
    prompt: Sequence[int]
    max_new_tokens: int
    adapter: int = 0
    stop: int = -1  # a token that ends the answer and is not part of it
    salt: int | None = None
    arrival_s: float = 0.0

    tokens: list[int] = field(init=False)  # that the host knows
    context_current_position: int = 0  # of the prompt: cached, or given to the device
    context_chunk_size: int = 0
    decoded: int = 0  # positions behind the prompt given to the device since it was admitted
    seat: int = -1
    finished: bool = False
    loading: bool = False  # waits for the connector, and is in no batch
    tokens_reused: int = 0
    token_times_s: list[float] = field(default_factory=list)
    # The prompt as it is computed: after preemption it contains the answer so far.
    prompt_len: int = field(init=False)

    is_dummy_request = False
    multimodal_hashes = py_multimodal_data = None
    sampling_config = SimpleNamespace(beam_width=1)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.prompt_len = len(self.prompt)

    def get_tokens(self, _beam: int) -> list[int]:
        return self.tokens

    def get_num_tokens(self, _beam: int) -> int:
        return len(self.tokens)

    @property
    def lora_task_id(self) -> int | None:
        return self.adapter or None

    @property
    def cache_salt_id(self) -> int | None:
        return self.salt

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def in_prompt(self) -> bool:
        return self.context_current_position < self.prompt_len

    @property
    def position(self) -> int:
        """The position of the next token to be given to the device."""
        return self.context_current_position + self.decoded

    @property
    def all_asked(self) -> bool:
        """Whether every token of the answer is known or being computed: the step at position p brings token p + 1."""
        return self.position >= len(self.prompt) + self.max_new_tokens - 1

    def wait_again(self) -> None:
        """The request has lost its blocks. Its answer so far becomes a part of its prompt when it is admitted again."""
        self.context_current_position = self.decoded = 0
        self.loading, self.seat = False, -1

    def begin(self, seat: int) -> None:
        self.seat = seat
        self.prompt_len = len(self.tokens)

    def take(self, token: int, now_s: float) -> bool:
        """Take a token; True if it was the last."""
        self.token_times_s.append(now_s)
        if token != self.stop:
            self.tokens.append(token)
        self.finished = token == self.stop or len(self.answer) >= self.max_new_tokens
        return self.finished
