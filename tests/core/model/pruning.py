"""Section 13: what is forgotten by name."""

from .matching import common_prefix, twin
from .state import Block, Root, State, Window
from .values import Extras, Request, Tokens


def truncate(state: State, request: Request, tokens_kept: int) -> int:
    if not 0 <= tokens_kept <= len(request.tokens):
        raise ValueError("more than there is")
    size, dropped = state.config.tokens_per_block, 0
    for window in state.windows:
        for block in reversed(path_of(window, request, size)[-(-tokens_kept // size) :]):
            if block is None:
                continue
            if window.children(block) or in_use(block):
                break
            state.drop(block)
            dropped += 1
    return dropped


def in_use(block: Block) -> bool:
    counts = [*block.pins.values(), *block.locks.values(), *block.in_flight.values(), block.refs, block.keepers]
    return any(counts)


def path_of(window: Window, request: Request, size: int) -> list[Block | None]:
    """The path by position: a whole block, or an incomplete one with only its tokens. Some may be gone in a window."""
    path: list[Block | None] = []
    node: Root | Block = window.root(request.root)
    contents: list[tuple[Tokens, Extras]] = []
    for begin in range(0, len(request.tokens), size):
        tokens = request.tokens[begin : begin + size]
        part = find_part(node, tokens, request, begin, size)
        contents.append((tokens, request.extras(begin, begin + len(tokens))))
        if window.shape.size is not None:
            path.append(part)
            node = window.root(request.root, tuple(contents))
            continue
        path += [part] if part else []
        if part is None or len(part.tokens) < size:
            break
        node = part
    return path


def find_part(node: Root | Block, tokens: Tokens, request: Request, begin: int, size: int) -> Block | None:
    if len(tokens) == size and (whole := twin(node, tokens, request, begin)):
        return whole
    kin = [block for block in node.children if block.extras == request.extras(begin, begin + len(tokens))]
    reach = max((common_prefix(block.tokens, tokens) for block in kin), default=0)
    return next((block for block in kin if reach and block.tokens == tokens[:reach]), None)
