"""A rank's page of metrics is served whatever its clients do, and by one thread."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.ports import free_ports
from trtllm_kvfix.metrics import exporter
from trtllm_kvfix.metrics.exporter import CONNECTIONS_MAX, REQUEST_BYTES_MAX, PageServer

LIMIT_S = 30
Said = list[str]


@pytest.fixture
def asked() -> Said:
    """What the page was asked, and by which thread."""
    return []


@pytest.fixture
def port(asked: Said) -> Iterator[int]:
    def page(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        asked.append(f"{request['PATH_INFO']} {request['HTTP_ACCEPT']} {threading.current_thread().name}")
        if request["PATH_INFO"] == "/broken":
            raise RuntimeError("planted")
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"x" * int(request["QUERY_STRING"] or 3)]

    number = free_ports(1)
    server = PageServer("127.0.0.1", number, page)
    yield number
    server.stop()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def answer(port: int, path: str = "/metrics") -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    client.request("GET", path, headers={"Accept": "text/x"})
    got = client.getresponse()
    return got.status, got.read()


def ends(client: socket.socket) -> bool:
    """Waits until the server has ended it."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_clients_that_send_nothing_cost_no_thread_and_hold_up_nobody(
    port: int, asked: Said, caplog: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(port)) for _ in range(200)]
        for client in idle[::2]:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert [answer(port) for _ in range(3)] == 3 * [(200, b"xxx")]
        assert threading.active_count() == before
        assert all(ends(client) for client in idle[: 200 - CONNECTIONS_MAX])  # others came after them
    assert set(asked) == {"/metrics text/x kvfix-metrics"}
    assert caplog.text == ""


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nAccept: a"])
def test_a_client_that_sends_no_request_is_ended_in_time(
    sent: bytes, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "CONNECTION_S_MAX", 0.1)
    with connected(port) as client:
        client.sendall(sent)
        assert ends(client)


def test_a_client_that_does_not_take_its_page_is_ended_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "CONNECTION_S_MAX", 0.1)
    size = 50_000_000  # more than the kernel takes for us
    with connected(port) as client, ExitStack() as stack:
        client.sendall(f"GET /metrics?{size} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(1) == b"H"
        assert ends(stack.enter_context(connected(port)))  # which came later
        assert sum(map(len, iter(lambda: client.recv(1 << 20), b""))) < size


@pytest.mark.parametrize("sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 2 * REQUEST_BYTES_MAX])
def test_what_is_no_request_is_hung_up_on(sent: bytes, port: int) -> None:
    with connected(port) as client:
        client.sendall(sent)
        assert ends(client)
    assert answer(port) == (200, b"xxx")


def test_a_page_that_fails_is_said_and_the_next_one_is_served(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert answer(port, "/broken")[0] == 500
    assert "planted" in caplog.text
    assert answer(port) == (200, b"xxx")
