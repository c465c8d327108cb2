"""Subscribers that ask for batches that they missed."""

from typing import Any

import pytest

from tests.core.scenes import BLOCK, leave_behind, manager, prompt
from trtllm_kvfix.events.publisher import END, Translator

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")
WAIT_MS = 60_000


def asked(context: Any, endpoint: str, *first: int) -> Any:
    client = context.socket(zmq.DEALER)
    client.connect(endpoint)
    for number in first:
        client.send_multipart((b"", number.to_bytes(8, "big")))
    return client


def answers(client: Any) -> list[int]:
    """The numbers that came again, up to the end."""
    numbers: list[int] = []
    while client.poll(WAIT_MS):
        _, number, payload = client.recv_multipart()
        if number == END:
            return numbers
        assert msgspec.msgpack.decode(payload)[1]
        numbers.append(int.from_bytes(number, "big"))
    raise AssertionError(f"no end after {len(numbers)}")


def one_block(translator: Translator) -> list[Any]:
    """Events of which a translator makes messages as often as it gets them."""
    m = manager(primary=8, events_max=100)
    leave_behind(m, 0, prompt(0, BLOCK))
    events = m.get_latest_events()
    assert translator.translate(events) and translator.translate(events)
    return events
