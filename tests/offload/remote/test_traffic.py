"""Conversations on the stand-in executor of each build, 4 % of them cancelled, with a remote tier behind too small a
host tier. The store answers late, loses blocks, and its process ends now and then; every read of attention is compared.

KVFIX_TRAFFIC_REQUESTS sets how many requests each variant gets.
"""

import ctypes
import os
import random
from collections.abc import Callable

import pytest

from tests.offload.chats import Chats
from tests.offload.stand_in import BLOCK_BYTES, OffloadServer, offloading
from tests.standin.fixture import VARIANTS
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.remote.messages import Get

from .porter_double import Key, PorterDouble, planted, sealed

REQUESTS = int(os.environ.get("KVFIX_TRAFFIC_REQUESTS", "100"))
HOST_BYTES = 48 * sealed(BLOCK_BYTES)
ATTEMPTS_MAX = 8  # of the control: which slots are written late, and who reads them, is up to the device
Disturb = Callable[[PorterDouble, random.Random], None]


def serve(server: OffloadServer, disturb: Disturb) -> Chats:
    """Serves to the end, with nothing on its way."""
    porter: PorterDouble = server.worker.side.carrier.porter
    chats = Chats(server, REQUESTS, seed=5, disturb=lambda chance: disturb(porter, chance))
    chats.run()
    porter.holds_gets = porter.holds_puts = porter.holds_looks = False
    side = server.connector.scheduler.side
    for number in range(10_000, 10_200):
        if len(side.ledger) == 0:
            break
        server.run([server.request(number, [number], 1)])
    server.close()
    server.contents.judge()
    return chats


def slow_and_failing(porter: PorterDouble, chance: random.Random) -> None:
    porter.holds_gets, porter.holds_puts = chance.random() < 0.6, chance.random() < 0.6
    porter.holds_looks = chance.random() < 0.3
    if porter.asked and chance.random() < 0.05:
        porter.answer(porter.asked[0], "the process has ended")
    if porter.memory and chance.random() < 0.02:
        porter.memory.pop(chance.choice(list(porter.memory)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_conversations_read_what_is_theirs(
    variant: str, memory: dict[Key, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, memory)
    fetched, errors = counters.offload_remote_fetched_blocks.value, counters.offload_remote_errors.value
    with offloading(variant, 48, 40, remote_min_reuse_blocks=1, host_bytes=HOST_BYTES) as server:
        chats = serve(server, slow_and_failing)
        side = server.connector.scheduler.side
        assert server.contents.corrupt == [] and server.contents.reads > REQUESTS
        assert len(side.ledger) == 0 and side._live == {}
        server.index.check_invariants()
        assert server.index.stats().owned == 0 and server.index.stats().sequences == 0
        assert chats.cancelled and chats.answered
    assert counters.offload_remote_fetched_blocks.value > fetched
    assert counters.offload_remote_errors.value > errors


def test_without_an_end_of_the_process_a_failed_read_writes_others_blocks(
    memory: dict[Key, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: Mooncake's client writes the buffer of a read that has failed, once its node goes on."""
    planted(monkeypatch, memory)
    late: list[tuple[Get, bytes]] = []

    def writing_late(porter: PorterDouble, chance: random.Random) -> None:
        porter.holds_gets = True
        for get, content in late:
            for slot in get.slots:
                ctypes.memmove(porter.address_of(slot), content, len(content))
        for message in list(porter.asked):
            if isinstance(message, Get) and chance.random() < 0.5:
                late.append((message, bytes(porter.spec.block_bytes)))
                porter.answer(message, "-800")

    for _ in range(ATTEMPTS_MAX):
        memory.clear()
        late.clear()
        with offloading("F", 48, 40, remote_min_reuse_blocks=1, host_bytes=HOST_BYTES) as server:
            serve(server, writing_late)
            if late and server.contents.corrupt:
                return
    pytest.fail(f"{ATTEMPTS_MAX} times nothing was read where late bytes had been written")
