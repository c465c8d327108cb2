"""Section 3: what a prompt finds in one window, reading only."""

from dataclasses import dataclass, field

from .state import Block, Root, Window
from .values import Config, Request, Tokens


@dataclass
class Match:
    walked: list[Block] = field(default_factory=list)
    partial: Block | None = None
    tokens: int = 0

    def block(self, index: int) -> Block:
        """The walked block at the index, or the partial match that follows the walk."""
        if index < len(self.walked):
            return self.walked[index]
        assert self.partial is not None and index == len(self.walked)
        return self.partial


def match(config: Config, window: Window, request: Request) -> Match:
    if not config.block_reuse:
        return Match()
    found = Match()
    size, n = config.tokens_per_block, len(request.tokens)
    node: Root | Block = window.root(request.root)
    while (len(found.walked) + 1) * size <= n:
        begin = len(found.walked) * size
        child = twin(node, request.tokens[begin : begin + size], request, begin)
        if child is None or not child.usable:
            break
        found.walked.append(child)
        node = child
    full = len(found.walked) * size
    common = 0
    if config.partial_reuse and full < n:
        found.partial, common = partial_match(node, request, full, min(full + size, n))
    found.tokens = min(full + common, n - 1)
    return found


def twin(node: Root | Block, tokens: Tokens, request: Request, begin: int) -> Block | None:
    """The child with exactly this content."""
    extras = request.extras(begin, begin + len(tokens))
    same = [c for c in node.children if c.tokens == tokens and c.extras == extras]
    assert len(same) <= 1
    return same[0] if same else None


def partial_match(node: Root | Block, request: Request, begin: int, end: int) -> tuple[Block | None, int]:
    rest = request.tokens[begin:end]
    extras = request.extras(begin, end)
    kin = [(common_prefix(c.tokens, rest), c) for c in node.children if c.extras == extras]
    kin = [(common, c) for common, c in kin if common > 0]
    if not kin:
        return None, 0
    common, best = min(kin, key=lambda pair: (-pair[0], pair[1].tokens))
    return (best, common) if best.usable else (None, 0)


def common_prefix(a: Tokens, b: Tokens) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length
