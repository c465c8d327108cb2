"""A load balancer asks this (surface 5, #13318)."""

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

from .._standin import pauses
from .._standin.tensors import tensors
from .._torch.pyexecutor.llm_request import LlmRequest
from .._torch.pyexecutor.py_executor_creator import create_py_executor

RESPONSE_S_MAX = 60.0


@dataclass(frozen=True)
class Response:
    status_code: int
    content: Any = None


class OpenAIServer:
    """Neither answer looks at the executor, so both stay green when its loop has died."""

    def __init__(self, model: str, executor: Any) -> None:
        self.model = model
        self.executor = executor

    async def health(self) -> Response:
        return Response(status_code=200)

    async def get_model(self) -> Response:
        return Response(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})


def serve_until_told(args: Any, load: Sequence[list[int]], address: tuple[str, int]) -> None:
    """One rank, in this process. Each completion comes with others: `load` are the prompts that are served together."""
    points = pauses.begin()
    executor = create_py_executor(args)
    server = HttpServer(OpenAIServer(args.model, executor), load, address, points)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    server.serve_forever()
    server.server_close()
    executor.shutdown()


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, openai: OpenAIServer, load: Sequence[list[int]], address: tuple[str, int], points: pauses.Points
    ) -> None:
        super().__init__(address, _Handler)
        self.openai = openai
        self._points = points
        self._load = load
        self._lock = threading.Lock()
        self._served = 0

    def completion(self, max_tokens: int) -> Response:
        executor = self.openai.executor
        with self._lock:
            first, self._served = self._served, self._served + len(self._load)
        requests = [LlmRequest(first + number, prompt, max_tokens) for number, prompt in enumerate(self._load)]
        # Beside this package, for tests: the device is behind the host in each step, so that no race is left to chance.
        with import_module("stall").Stall(self._points, tensors()):
            responses = executor.await_responses(executor.enqueue_requests(requests), RESPONSE_S_MAX)
        return Response(200, {"choices": [{"text": f"{response.tokens}"} for response in responses or ()]})

    def corrupt(self) -> Response:
        """Upstream has no such page. The rows that reached attention wrong, by what they are rows of."""
        witness = self.openai.executor.model_engine.witness
        return Response(200, {what: len(witness.corrupt(what)) for what in ("block offsets", "prompt lens")})


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer

    def do_GET(self) -> None:
        openai = self.server.openai
        if self.path == "/health":
            self._answer(asyncio.run(openai.health()))
        elif self.path == "/v1/models":
            self._answer(asyncio.run(openai.get_model()))
        else:
            self._answer(self.server.corrupt() if self.path == "/corrupt" else Response(404))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.server.completion(asked["max_tokens"]))

    def _answer(self, response: Response) -> None:
        self.send_response(response.status_code)
        self.end_headers()
        self.wfile.write(json.dumps(response.content).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """The test says what happened."""
