"""A step: which tokens of which requests. Requests in their prompts come first, then those that generate."""

from dataclasses import dataclass, field

from trtllm_kvfix.engine.request import Request

NOT_KNOWN = 0  # stands for a token that only the device knows


@dataclass
class StepPart:
    """One request's share, as it was when the step was made: the request goes on meanwhile."""

    request: Request
    begin: int  # position
    tokens: int  # how many
    known: list[int]
    source: int  # the seat whose last token the device takes instead of the known one, or -1
    seat: int
    in_prompt: bool
    says: bool  # it ends with a new token


@dataclass
class StepBatch:
    parts: list[StepPart] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def generates_only(self) -> bool:
        return not any(part.in_prompt for part in self.parts)

    def blocks(self, tokens_per_block: int) -> int:
        """The number of blocks of its longest sequence."""
        return max(-(-(part.begin + part.tokens) // tokens_per_block) for part in self.parts)


def prompt_part(request: Request, tokens_max: int) -> StepPart:
    """The next chunk of a prompt, which this call gives to the device."""
    begin = request.context_current_position
    end = min(begin + tokens_max, request.prompt_len)
    request.context_current_position = end
    return StepPart(
        request, begin, end - begin, request.tokens[begin:end], -1, request.seat, True, end == request.prompt_len
    )  # fmt: skip


def generating_part(request: Request) -> StepPart:
    begin = request.position
    request.decoded += 1
    is_known = begin < len(request.tokens)
    known = request.tokens[begin] if is_known else NOT_KNOWN
    return StepPart(request, begin, 1, [known], -1 if is_known else request.seat, request.seat, False, True)
