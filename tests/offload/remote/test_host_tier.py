"""What the host tier's admission and upstream's reservations mean for fetches. The scheduler side alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.test_tier_admission import SLOTS, scanned, served
from tests.offload.upstream_double import Request
from trtllm_kvfix.offload.link import Link
from trtllm_kvfix.offload.plan import Ended
from trtllm_kvfix.offload.remote.scheduler import RemoteScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload_section import OffloadSettings, RemoteSettings

PROMPT = [-5, -6, -7, -8, 0]
BLOCKS = [[0, 1, 2, 3, 4]]


class StoreOfAll:
    """It has whatever is asked for."""

    root, block_bytes, is_up = b"", 1, True

    def __init__(self) -> None:
        self.looks = 0

    def look(self, keys: tuple[bytes, ...], wait_s: float) -> list[bool]:
        del wait_s
        self.looks += 1
        return [True] * len(keys)


@pytest.fixture
def store() -> StoreOfAll:
    return StoreOfAll()


@pytest.fixture
def side(store: StoreOfAll) -> RemoteScheduler:
    """Its host tier is full, and declines what is new."""
    link = Link()
    link.slots, link.store = SLOTS, store
    settings = OffloadSettings(host_bytes=1, log_every_requests=0, remote=RemoteSettings(min_reuse_blocks=2))
    made = RemoteScheduler(settings, 1, link, Switches(None))
    made._index = scanned()
    assert served(made._index, [-1, -2, -3]).declined
    return made


def test_a_fetch_is_worth_its_place_in_a_tier_that_declines_what_is_new(side: RemoteScheduler) -> None:
    request = Request(1, list(PROMPT))
    assert side.get_num_new_matched_tokens(request, 0) == (4, True)
    side.update_state_after_alloc(request, BLOCKS)
    (fetch,) = side.build_connector_meta(None).fetches
    assert len(fetch.slots) == 4


def test_nothing_is_fetched_for_what_upstream_reserves(side: RemoteScheduler, store: StoreOfAll) -> None:
    """It may take a part of a promise, or come back on it, in the middle of a fetch."""
    request = Request(1, list(PROMPT))
    assert side.reserve_prefix(request, 0, 7) == (0, False)
    side.update_state_after_alloc(request, BLOCKS)
    assert store.looks == 0 and not side.build_connector_meta(None)


def test_what_was_reserved_is_put_once_it_is_stored(side: RemoteScheduler) -> None:
    side.index.drop()  # type: ignore[union-attr]  # now there is room
    request: Any = Request(1, list(PROMPT))
    side.reserve_prefix(request, 0, 7)
    side.update_state_after_alloc(request, BLOCKS)
    began = SimpleNamespace(
        request_id=1, new_tokens=PROMPT, new_block_ids=BLOCKS[0], computed_position=4, num_scheduled_tokens=1
    )
    output = SimpleNamespace(new_requests=[began], cached_requests=[])
    (told,) = side.build_connector_meta(output).stores
    side._link.ended.append(Ended(told.job, ""))
    (put,) = side.build_connector_meta(None).puts
    assert put.slots == told.slots
