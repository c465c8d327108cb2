"""Section 3: what a prompt finds in one window, reading only."""

from dataclasses import dataclass, field

from .state import Block, Root, Window
from .values import Config, Request, Tokens


@dataclass
class Match:
    window: Window
    block_size: int
    found: list[Block | None] = field(default_factory=list)  # full blocks of the prompt
    begins: list[tuple[Block | None, int]] = field(default_factory=list)  # instead of each: what begins as it does

    def outside(self, full: int) -> int:
        """Leading blocks that the token behind `full` blocks does not look back to."""
        size = self.window.shape.size
        return 0 if size is None else max(0, full * self.block_size - size) // self.block_size

    def allows(self, tokens: int) -> bool:
        """Whether all that the next token looks back to is there."""
        if not self.begins:
            return tokens == 0
        full, rest = divmod(tokens, self.block_size)
        if None in self.found[self.outside(full) : full] or full > len(self.found):
            return False
        whole = full < len(self.found) and self.found[full] is not None
        return rest == 0 or whole or rest <= self.begins[full][1]

    def source(self, index: int) -> Block:
        """The block that begins as the prompt's block does, whole or not."""
        block = self.found[index] if index < len(self.found) else None
        block = block or self.begins[index][0]
        assert block is not None
        return block


def match(config: Config, window: Window, request: Request) -> Match:
    size, n = config.tokens_per_block, len(request.tokens)
    found = Match(window, size)
    if not config.block_reuse:
        return found
    node: Root | Block | None = window.root(request.root)
    for index in range(n // size + 1):
        begin = index * size
        if window.shape.size is not None:  # whatever became of those before it
            node = window.root(request.root, request.prefix(index, size))
        begins = partial_match(node, request, begin, min(begin + size, n)) if node and begin < n else (None, 0)
        found.begins.append(begins if config.partial_reuse else (None, 0))
        if begin + size <= n:
            block = twin(node, request.tokens[begin : begin + size], request, begin) if node else None
            node = block if block is not None and block.usable else None
            found.found.append(block if node else None)
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
