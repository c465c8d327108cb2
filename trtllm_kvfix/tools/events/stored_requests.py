"""Which requests have stored the blocks that a server's KV events describe.

A server says which blocks it stores, each with the hash of the one before it, and which it removes. So the blocks of
one event, and all those before them, are the prompt of a request, which found those that were there and computed the
rest. Blocks that are stored behind them later are more of the same request, up to a block that it has only begun: this
is its end. A cache that keeps no such blocks stores at the end of a prompt and at that of its answer, so there the
second event is the end.

The events do not say what was found where nothing was stored, nor where a prompt ends and its answer begins. We take
the first event of a request for its prompt, and what follows for its answer.
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

BlockHash = int | str


class StoredBlock(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    block_hash: BlockHash
    tokens: list[Any] = Field(min_length=1)


class StoredData(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["stored"]
    parent_hash: BlockHash | None
    blocks: list[StoredBlock] = Field(min_length=1)


class RemovedData(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["removed"]
    block_hashes: list[BlockHash]


class CreatedData(BaseModel):
    """The cache was made: a server has started."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["created"]


class UpdatedData(BaseModel):
    """A block has moved to another tier, or has another priority: it is still there."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["updated"]


class ServerEvent(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    event_id: int
    data: Annotated[StoredData | RemovedData | CreatedData | UpdatedData, Field(discriminator="type")]
    window_size: int | None = None
    attention_dp_rank: int | None = None


class StoredRequest(NamedTuple):
    """A request, as far as its blocks are known. It has computed all tokens in them."""

    at_ms: float
    prompt_tokens: int
    tokens: int  # of prompt and answer
    blocks: list[BlockHash]


class _Node(NamedTuple):
    parent: BlockHash | None
    tokens: int


class _OpenRequest(NamedTuple):
    """May store more."""

    at_ms: float
    prompt_blocks: int  # in its first event
    blocks: int


class StoredRequests:
    """Follows the events of one cache, and takes requests out of them."""

    def __init__(self) -> None:
        self.ended: list[StoredRequest] = []
        self.tokens_per_block = 0  # once a block has another behind it; only then it is known to be full
        self.begun_blocks = 0
        self.cut = 0  # requests of which the first blocks were stored before the first event
        self._nodes: dict[BlockHash, _Node] = {}
        self._open: dict[BlockHash, _OpenRequest] = {}  # by their last block

    def stored(self, data: StoredData, at_ms: float) -> None:
        parent, blocks = data.parent_hash, data.blocks
        before = None if parent is None else self._nodes.get(parent)
        if not self.tokens_per_block and (before or len(blocks) > 1):
            self.tokens_per_block = before.tokens if before else len(blocks[0].tokens)
        at = parent
        for block in blocks:
            self._nodes[block.block_hash] = _Node(at, len(block.tokens))
            at = block.block_hash
        last = blocks[-1]
        if last.block_hash in self._open:  # its removal was lost
            self._end(last.block_hash)
        request = self._open.pop(parent, None) if parent is not None else None
        if request is None:
            request = _OpenRequest(at_ms, len(blocks), 0)
            self.cut += parent is not None and before is None
        self._open[last.block_hash] = request._replace(blocks=request.blocks + len(blocks))
        if len(last.tokens) < self.tokens_per_block:
            self.begun_blocks += 1
            self._end(last.block_hash)
        elif request.blocks and not self.begun_blocks:  # this cache keeps whole blocks alone
            self._end(last.block_hash)

    def removed(self, hashes: list[BlockHash]) -> None:
        for each in hashes:
            if each in self._open:
                self._end(each)
        for each in hashes:
            self._nodes.pop(each, None)

    def end(self) -> None:
        """Of all requests, and of the cache."""
        if not self.tokens_per_block and self._nodes:
            self.tokens_per_block = max(node.tokens for node in self._nodes.values())
        for each in list(self._open):
            self._end(each)
        self._nodes.clear()

    def _end(self, leaf: BlockHash) -> None:
        request, path = self._open.pop(leaf), self._path_to(leaf)
        last_tokens = self._nodes[leaf].tokens
        size = self.tokens_per_block or last_tokens  # not known where no block has had another behind it
        tokens = (len(path) - 1) * size + last_tokens
        prompt_blocks = max(len(path) - (request.blocks - request.prompt_blocks), 1)
        self.ended.append(StoredRequest(request.at_ms, min(prompt_blocks * size, tokens), tokens, path))

    def _path_to(self, leaf: BlockHash) -> list[BlockHash]:
        """From the first block that is known. Hashes of a broken server may go in a circle."""
        path, at = [leaf], self._nodes[leaf].parent
        while at is not None and len(path) < len(self._nodes):
            node = self._nodes.get(at)
            if node is None or node.tokens != self.tokens_per_block:
                break
            path.append(at)
            at = node.parent
        return path[::-1]
