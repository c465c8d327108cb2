"""A request whose load failed computes its prompt, also where upstream has set the size of its only chunk already."""

from dataclasses import dataclass

from trtllm_kvfix.offload.patches import put_back


@dataclass
class Request:
    """Upstream's request: one that is not chunked has what was left when it was first scheduled as its chunk."""

    prompt_len: int
    context_current_position: int
    context_chunk_size: int

    @property
    def context_remaining_length(self) -> int:
        return self.prompt_len - self.context_current_position


def test_the_chunk_is_put_back_with_the_position() -> None:
    request = Request(prompt_len=40, context_current_position=36, context_chunk_size=4)
    put_back(request, 8)
    assert (request.context_current_position, request.context_chunk_size) == (8, 32)
