"""A server of KV events, as trtllm-serve is one, and a cache whose events it shows."""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SIZE = 4  # tokens of a block
WINDOW = 8192
Tokens = tuple[int, ...]


class RadixCache:
    """Keeps the blocks of prompts and answers, and says so as upstream's manager does: the whole blocks of a prompt
    when it is computed, and the rest when the request ends, with the block that it has only begun."""

    def __init__(self, blocks_max: int, *, size: int = SIZE, keeps_begun: bool = True) -> None:
        self._blocks_max, self._size, self._keeps_begun = blocks_max, size, keeps_begun
        self._blocks: OrderedDict[Tokens, int] = OrderedDict()  # by all tokens up to their ends; the oldest first
        self._next_id = 0
        self.events: deque[Any] = deque()
        self.blocks_found = 0
        self.say({"type": "created", "num_blocks_per_cache_level": [blocks_max, 0]})

    def say(self, data: dict[str, Any], **fields: Any) -> None:
        self.events.append({"event_id": self._next_id, "data": data, "window_size": WINDOW} | fields)
        self._next_id += 1

    def serve(self, prompt: Tokens, answer: Tokens) -> None:
        self.begin(prompt)
        self.end(prompt + answer[:-1])

    def begin(self, prompt: Tokens) -> None:
        ends = range(self._size, len(prompt), self._size)  # the last token is always computed
        found = next((at for at, end in enumerate(ends) if prompt[:end] not in self._blocks), len(ends))
        self.blocks_found += found
        self._store(prompt[: (len(prompt) - 1) // self._size * self._size])

    def end(self, tokens: Tokens) -> None:
        self._store(tokens if self._keeps_begun else tokens[: len(tokens) // self._size * self._size])

    def _store(self, tokens: Tokens) -> None:
        ends = [min(end, len(tokens)) for end in range(self._size, len(tokens) + self._size, self._size)]
        new = [end for end in ends if tokens[:end] not in self._blocks]
        for end in reversed(ends):  # so the last go first
            self._blocks[tokens[:end]] = hash_of(tokens[:end])
            self._blocks.move_to_end(tokens[:end])
        removed = [self._blocks.popitem(last=False)[1] for _ in range(len(self._blocks) - self._blocks_max)]
        if removed:
            self.say({"type": "removed", "block_hashes": removed})
        if new:
            begin = (new[0] - 1) // self._size * self._size
            self.say({
                "type": "stored", "parent_hash": hash_of(tokens[:begin]) if begin else None,
                "blocks": [stored_block(tokens[:end], self._size) for end in new],
            })  # fmt: skip


def hash_of(tokens: Tokens) -> int:
    return hash(tokens) & (1 << 64) - 1


def stored_block(tokens: Tokens, size: int = SIZE) -> dict[str, Any]:
    spelled = [
        {"type": "unique_token", "token_id": each, "token_extra_id": 0}
        for each in tokens[-((len(tokens) - 1) % size + 1) :]
    ]
    return {"type": "stored_block", "block_hash": hash_of(tokens), "tokens": spelled, "cache_level": 0, "priority": 35}


class EventServer(ThreadingHTTPServer):
    """Answers with what `events` holds, once. `status` and `text` make it answer with something else."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, events: deque[Any], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.events = events
        self.status, self.text = 200, ""
        self.asked = threading.Semaphore(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: EventServer

    def do_POST(self) -> None:
        assert self.path == "/kv_cache_events"
        said = [self.server.events.popleft() for _ in range(len(self.server.events))] if not self.server.text else []
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write((self.server.text or json.dumps(said)).encode())
        self.server.asked.release()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because the test says what happened."""


@contextmanager
def serving(events: deque[Any], port: int = 0) -> Iterator[EventServer]:
    with EventServer(events, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
