"""Section 13: what is forgotten by name."""

from .matching import common_prefix, twin
from .state import Block, Root, State, Window
from .values import Request, Salt


def truncate(state: State, request: Request, tokens_kept: int) -> int:
    if not 0 <= tokens_kept <= len(request.tokens):
        raise ValueError("more than there is")
    size, dropped = state.config.tokens_per_block, 0
    for window in state.windows:
        path = path_of(window, request, size)
        while len(path) > -(-tokens_kept // size) and not path[-1].children and not in_use(path[-1]):
            state.drop(path.pop())
            dropped += 1
    return dropped


def in_use(block: Block) -> bool:
    counts = [*block.pins.values(), *block.locks.values(), *block.in_flight.values(), block.refs, block.keepers]
    return any(counts)


def path_of(window: Window, request: Request, size: int) -> list[Block]:
    """Whole blocks, and an incomplete one behind them if all of its tokens are the request's."""
    path: list[Block] = []
    node: Root | Block = window.root(request.root)
    for begin in range(0, len(request.tokens), size):
        tokens = request.tokens[begin : begin + size]
        child = twin(node, tokens, request, begin) if len(tokens) == size else None
        if child is None:
            extras = request.extras(begin, begin + len(tokens))
            kin = [block for block in node.children if block.extras == extras]
            reach = max((common_prefix(block.tokens, tokens) for block in kin), default=0)
            return path + [block for block in kin if reach and block.tokens == tokens[:reach]]
        path.append(child)
        node = child
    return path


def drop_tenant(state: State, lora_id: int | None, salt: Salt) -> int:
    if lora_id is None and salt is None:
        raise ValueError("of whom?")
    dropped = 0
    for window in state.windows:
        for root in window.roots:
            lora, kind, salted = root.key
            of_salt = salt is None or (kind, salted) == (type(salt).__name__, salt)
            if of_salt and lora_id in (None, lora):
                for top in list(root.children):
                    dropped += len(list(top.family()))
                    state.drop(top)
    return dropped
