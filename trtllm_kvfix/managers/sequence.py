"""A live sequence, as upstream reports it: what is reserved, and which chunks of its prompt have been computed."""

from typing import Any

from trtllm_kvfix.managers.prompts import Prompt, forget_prompt


class Sequence:
    """In the overlap loop, a request's position runs ahead of what the host knows to be computed.

    Upstream makes no call when it prepares a later chunk of a prompt. But the head of a `prepare_resources` lies
    between two moves of a position, and each batch reports its chunks once, in order. So positions are noted as they
    move, and the i-th report of a request ends its i-th chunk.
    """

    __slots__ = (
        "_chunk_ends", "_position", "computed", "is_dummy", "is_private", "length", "most", "names", "prompt",
        "prompt_length", "request", "request_id",
    )  # fmt: skip

    def __init__(self, request: Any, prompt: Prompt, reused: int, length: int, *, is_dummy: bool) -> None:
        self.request = request
        self.request_id = prompt.request_id
        self.prompt: Prompt | None = prompt  # until it is computed
        self.prompt_length = prompt.length
        self.length = length  # positions reserved
        self.computed = reused  # leading positions whose values are in the cache, as far as reported
        self.most: int = prompt.length + request.max_new_tokens  # positions that it may reach
        self.is_private = prompt.is_private
        self.is_dummy = is_dummy
        self.names: tuple[int, ...] = ()  # of full blocks, as far as they have been asked for
        self._position = reused
        self._chunk_ends: tuple[int, ...] = ()  # computed or being computed, not reported yet

    @property
    def is_in_prompt(self) -> bool:
        """Whether more chunks will be enqueued."""
        return self._position < self.prompt_length

    def begin_at(self, position: int) -> None:
        """The position where the model begins: behind what a connector loads."""
        self._position = position

    def look(self) -> None:
        """Note the end of a chunk that has been enqueued since the last look."""
        if not self.is_in_prompt:
            return
        position = min(self.request.context_current_position, self.prompt_length)
        # A failed load moves it backwards. One chunk more is counted then, so less counts as computed, never more.
        if position != self._position:
            self._chunk_ends += (position,)
            self._position = position

    def lacks(self, chunk: int) -> int:
        """Positions to reserve, so that a step may compute the next chunk."""
        return min(self._position + chunk, self.prompt_length) - self.length

    def reported(self) -> int:
        """A batch with a chunk of this prompt has ended. Returns how much of the prompt is computed by now."""
        self.look()
        if self._chunk_ends:
            self.computed, *later = self._chunk_ends
            self._chunk_ends = tuple(later)
        if self.computed == self.prompt_length:
            self.prompt = None
            forget_prompt(self.request)
        return self.computed

    def computed_for_growth(self) -> int:
        """Leading positions that the device has computed when the next one is reserved, so that a window may slide.

        The last one may be in the step that runs meanwhile.
        """
        return self.computed if self.computed < self.prompt_length else max(self.computed, self.length - 1)

    def known_at_end(self, request: Any) -> tuple[list[int] | None, int]:
        """The tokens to keep (None if the prompt has all of them), and how many positions are computed.

        A token was sampled from a step that had computed every position before it. The last one itself may not have
        gone through the model.
        """
        tokens: int = request.get_num_tokens(0)
        if tokens <= self.prompt_length:
            return None, self.computed
        done = min(tokens - 1, self.length)
        return (request.get_tokens(0)[:done] if done > self.prompt_length else None), done
