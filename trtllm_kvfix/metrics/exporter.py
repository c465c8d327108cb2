"""Shows the counts to Prometheus. Each rank serves its own on `metrics_port` plus its rank, so none waits for another.

Counts are collected when they are scraped, into a registry of our own: an application's other metrics stay apart.

One thread serves all clients, because the process has other work. A client that sends nothing, or reads nothing, costs
a file descriptor until its time is up or too many others have come after it. So a port scanner cannot fill a rank with
threads, and a scrape is answered meanwhile.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.sections import PORT_MAX

CONNECTIONS_MAX = 64  # a Prometheus or two need one each
CONNECTION_S_MAX = 10.0
REQUEST_BYTES_MAX = 16 << 10
GONE = (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.TimeoutError, asyncio.CancelledError)

Page = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]  # a WSGI application


class PageServer:
    """It begins to serve when it is made. A port that cannot be used raises OSError."""

    def __init__(self, address: str, port: int, page: Page) -> None:
        self._page = page
        self._socket = socket.create_server((address, port), backlog=CONNECTIONS_MAX)
        self._loop = asyncio.SelectorEventLoop()  # whatever kind the application has chosen for itself
        self._loop.set_exception_handler(lambda _, context: log.warning("metrics port: %s", context.get("message")))
        self._open: dict[asyncio.Task[Any], asyncio.Task[Any]] = {}  # the oldest first
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="kvfix-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=REQUEST_BYTES_MAX)
        await self._stopping.wait()
        server.close()
        ending = [task for task in self._open if task.cancel()]
        await asyncio.gather(*ending, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) == CONNECTIONS_MAX:
            self._open.pop(next(iter(self._open))).cancel()
        self._open[task] = task
        try:
            # A client may hang up, take too long, or send something that is no request; none of that is our concern.
            # Only this object cancels, and asyncio of Python 3.11 logs what is cancelled.
            with suppress(*GONE):
                await asyncio.wait_for(self._answer(reader, writer), CONNECTION_S_MAX)
        finally:
            self._open.pop(task, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, headers, body = self._made(request_of(await reader.readuntil(b"\r\n\r\n")))
        lines = [f"HTTP/1.0 {status}", *(": ".join(header) for header in headers), f"Content-Length: {len(body)}"]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body)
        writer.close()
        await writer.wait_closed()  # until the client has taken it

    def _made(self, request: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        said: list[Any] = []
        try:
            body = b"".join(self._page(request, lambda *status_and_headers: said.extend(status_and_headers)))
        except Exception as error:
            log.error("metrics cannot be shown", error=error)
            return "500 Internal Server Error", [], b"the log of this process says why\n"
        return said[0], said[1], body


def request_of(head: bytes) -> dict[str, Any]:
    """The parts of a request that a page reads, under WSGI's names. Raises ValueError if `head` is no request."""
    first, *rest = head.decode("latin-1").splitlines()
    method, target, _version = first.split()
    headers: Mapping[str, str] = {
        name.strip().lower(): text.strip() for name, _, text in (x.partition(":") for x in rest)
    }
    path, _, query = target.partition("?")
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "HTTP_ACCEPT": headers.get("accept", ""),
        "HTTP_ACCEPT_ENCODING": headers.get("accept-encoding", ""),
    }


PREFIX = "trtllm_kvfix_"


class CountsCollector(Collector):
    """`words` returns the state of each fix: {"staged-offsets-v1": "applied", ...}."""

    def __init__(self, rank: int, words: Callable[[], Mapping[str, str]]) -> None:
        self._rank = str(rank)
        self._words = words

    def collect(self) -> Iterator[Metric]:
        values = counters.read()
        for counter in counters.ALL:
            if isinstance(counter, counters.CounterByFix):
                yield self._of_fixes(counter)
                continue
            family = CounterMetricFamily if counter.kind == "counter" else GaugeMetricFamily
            metric = family(PREFIX + counter.name, counter.help, labels=["rank"])
            metric.add_metric([self._rank], values[counter.name])
            yield metric
        info = InfoMetricFamily(PREFIX + "fix", "What became of each fix in this process", labels=["rank", "fix"])
        for fix_id, word in self._words().items():
            info.add_metric([self._rank, fix_id], {"state": word})
        yield info

    def _of_fixes(self, counter: counters.CounterByFix) -> Metric:
        metric = CounterMetricFamily(PREFIX + counter.name, counter.help, labels=["rank", "fix"])
        for fix_id, value in (dict.fromkeys(self._words(), 0.0) | counter.by_fix()).items():
            metric.add_metric([self._rank, fix_id], value)
        return metric


def serve(port_first: int, rank: int, words: Callable[[], Mapping[str, str]], address: str = "0.0.0.0") -> PageServer:
    """Serve in a daemon thread; raise SettingsError if the port cannot be used."""
    port = port_first + rank
    if port > PORT_MAX:
        raise SettingsError(f"kvfix.metrics_port {port_first} leaves no port for rank {rank}: the last is {PORT_MAX}")
    registry = CollectorRegistry()
    registry.register(CountsCollector(rank, words))
    try:
        return PageServer(address, port, make_wsgi_app(registry))
    except OSError as error:
        raise SettingsError(
            f"metrics of rank {rank} cannot be served on port {port}: {error}; rank r listens on kvfix.metrics_port + "
            "r, so the ports above it must be free too"
        ) from error
