"""Writes what the events of a server say, in the format of a recording: hashes of blocks under a key that is drawn at
each start of the server, and no tokens."""

import secrets
from collections import Counter
from dataclasses import dataclass, field

from pydantic import ValidationError

from trtllm_kvfix.recording import RecordingFile, line_of_names, secret_name
from trtllm_kvfix.tools.events.stored_requests import (
    RemovedData,
    ServerEvent,
    StoredData,
    StoredRequest,
    StoredRequests,
)

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
