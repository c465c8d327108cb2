"""Which requests have stored the blocks that a server's KV events describe.

A server says which blocks it stores, each with the hash of the one before it, and which it removes. So the blocks of
one event, and all those before them, are the prompt of a request, which found those that were there and computed the
rest. Blocks that are stored behind them later are more of the same request, up to a block that it has only begun: this
is its end. A cache that keeps no such blocks stores at the end of a prompt and at that of its answer, so there the
second event is the end.

The events do not say what was found where nothing was stored, nor where a prompt ends and its answer begins. We take
the first event of a request for its prompt, and what follows for its answer.

Requests are written in the format of a recording: hashes of blocks under a key that is drawn at each start of the
server, and no tokens.
"""

import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trtllm_kvfix.recording import RecordingFile, line_of_names, secret_name

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


# ---- the recording ----

KINDS = ("stored", "removed", "created", "updated")


@dataclass
class EventCounts:
    events: int = 0
    requests: int = 0
    cut: int = 0  # of these, without their first blocks
    begun_blocks: int = 0
    lost: int = 0  # events, by the gaps between their numbers
    restarts: int = 0
    of_other_windows: int = 0
    unknown: Counter[str] = field(default_factory=Counter[str])  # events that cannot be used, by what they are


class _Cache:
    """One cache of the server, and the file of its requests. With attention data parallelism each rank has one."""

    def __init__(self, file: str, bytes_max: int, counts: EventCounts) -> None:
        self._file = RecordingFile(file, bytes_max, "--record")
        self._counts = counts
        self._next_id = -1  # none has come
        self._last_ms = 0.0
        self._requests = StoredRequests()
        self._window = 0
        self._key = b""
        self._has_head = False
        self._begin()

    @property
    def why_over(self) -> str:
        return self._file.why_over

    def add(self, event: ServerEvent, now_ms: float) -> None:
        self._follow_ids(event.event_id)
        if event.window_size is not None and event.window_size != self._window:
            if event.window_size < self._window:
                self._counts.of_other_windows += 1
                return
            self._end()  # what came before is of a window that says less
            self._window = event.window_size
        data = event.data
        if isinstance(data, StoredData):
            self._last_ms = max(now_ms, self._last_ms + 0.001)  # so their order is kept
            self._requests.stored(data, self._last_ms)
        elif isinstance(data, RemovedData):
            self._requests.removed(data.block_hashes)

    def write(self) -> None:
        """What has ended, once the size of a block is known."""
        size = self._requests.tokens_per_block
        ended = self._requests.ended
        if not size or not ended:
            return
        if not self._has_head:
            self._file.begin(size)
            self._has_head = True
        for request in ended:
            self._file.append(self._line_of(request, size))
            self._counts.requests += not self._file.why_over
        ended.clear()

    def close(self) -> None:
        self._end()
        self._file.close()

    def _begin(self) -> None:
        """What two starts have recorded has nothing in common, as their caches had nothing."""
        self._requests, self._window = StoredRequests(), 0
        self._key, self._has_head = secrets.token_bytes(16), False

    def _end(self) -> None:
        self._requests.end()
        self.write()
        self._counts.cut += self._requests.cut
        self._counts.begun_blocks += self._requests.begun_blocks
        self._begin()

    def _follow_ids(self, event_id: int) -> None:
        if event_id < self._next_id:
            self._counts.restarts += 1
            self._end()
        elif self._next_id >= 0:
            self._counts.lost += event_id - self._next_id
        self._next_id = event_id + 1

    def _line_of(self, request: StoredRequest, size: int) -> bytes:
        """Nothing is computed of an answer's last token."""
        names = [secret_name(repr(each).encode(), self._key) for each in request.blocks]
        answer_tokens = request.tokens - request.prompt_tokens + 1
        return line_of_names(request.at_ms, request.prompt_tokens, answer_tokens, names, size)


class EventRecorder:
    def __init__(self, file: str, bytes_max: int) -> None:
        self._name, self._bytes_max = file, bytes_max
        self.counts = EventCounts()
        self._caches = {0: _Cache(file, bytes_max, self.counts)}

    @property
    def why_over(self) -> str:
        """Why nothing more is written, if so."""
        return next((each.why_over for each in self._caches.values() if each.why_over), "")

    def add(self, events: list[object], now_ms: float) -> None:
        for each in events:
            self.counts.events += 1
            try:
                event = ServerEvent.model_validate(each)
            except ValidationError as error:
                self.counts.unknown[_kind_of(each, error)] += 1
                continue
            self._cache_of(event.attention_dp_rank or 0).add(event, now_ms)
        for cache in self._caches.values():
            cache.write()

    def close(self) -> None:
        for cache in self._caches.values():
            cache.close()

    def _cache_of(self, rank: int) -> _Cache:
        if rank not in self._caches:
            self._caches[rank] = _Cache(f"{self._name}.{rank}", self._bytes_max, self.counts)
        return self._caches[rank]


def _kind_of(event: object, error: ValidationError) -> str:
    """What an event is that cannot be used: of a kind that is not known, or of a known one with other fields."""
    data = event.get("data") if isinstance(event, dict) else None
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str):
        return "no event"
    if kind not in KINDS:
        return kind
    where = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
    return f"{kind} without a valid {where}"
