"""Fetches respect the host tier's admission and upstream's reservations. The scheduler side alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.test_tier_admission import SLOTS, circled, served
from tests.offload.ends import end
from tests.offload.upstream_double import Request
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Link
from trtllm_kvfix.offload.policy import HostPoolTier, Staging, StoreTier, TierPolicy
from trtllm_kvfix.offload.remote import keys as keys_module
from trtllm_kvfix.offload.remote.keys import keys_behind
from trtllm_kvfix.offload.remote.messages import Look, LookAnswer
from trtllm_kvfix.offload.remote.scheduler import FUSE, RemoteTier, remote_scheduler
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload_section import OffloadSettings, RemoteSettings
from trtllm_kvfix.overlay import fuse

POOL_SLOTS = SLOTS + 13  # an eighth is kept for what goes to the store alone
PROMPT = [-5, -6, -7, -8, 0]
BLOCKS = [[0, 1, 2, 3, 4]]


class StoreOfAll:
    """It has whatever is asked for, or nothing."""

    root, block_bytes, ranks, is_up = b"", 1, 1, True

    def __init__(self) -> None:
        self.looks = 0
        self.has_all = True
        self._found: list[LookAnswer] = []

    def look(self, look: Look) -> bool:
        self.looks += 1
        keys = keys_behind(look.start, 0, look.tokens, 1, ())
        self._found.append(LookAnswer(look.number, b"".join(keys), len(keys) if self.has_all else 0))
        return True

    def take_found(self) -> list[LookAnswer]:
        found, self._found = self._found, []
        return found

    def lookups_wait_s(self) -> float:
        return 0.0


@pytest.fixture
def store() -> StoreOfAll:
    return StoreOfAll()


@pytest.fixture
def side(store: StoreOfAll) -> OffloadScheduler:
    """Its host tier is full, and declines what is new."""
    link = Link()
    link.slots, link.store = POOL_SLOTS, store
    settings = OffloadSettings(host_bytes=1, log_every_requests=0, remote=RemoteSettings(min_reuse_blocks=2))
    made = remote_scheduler(settings, 1, link, Switches(None))
    assert made.behind is not None
    index, staging = circled(), made.behind.share(POOL_SLOTS)
    assert staging.first == SLOTS
    made._policy = TierPolicy(index, [HostPoolTier(index, 1), StoreTier(index, made.behind, staging, 2)])
    assert served(index, [-1, -2, -3]).declined
    return made


def test_a_fetch_is_worth_its_place_in_a_tier_that_declines_what_is_new(side: OffloadScheduler) -> None:
    request = Request(1, list(PROMPT))
    assert side.hold_back([request], [request]) == [1] and side.hold_back([request], [request]) == []
    assert side.get_num_new_matched_tokens(request, 0) == (4, True)
    side.update_state_after_alloc(request, BLOCKS)
    (fetch,) = side.build_connector_meta(None).fetches
    assert len(fetch.slots) == 4


def test_nothing_is_fetched_for_what_upstream_reserves(side: OffloadScheduler, store: StoreOfAll) -> None:
    """It may take a part of a promise, or come back on it, in the middle of a fetch."""
    request = Request(1, list(PROMPT))
    assert side.reserve_prefix(request, 0, 7) == (0, False)
    assert side.hold_back([request], [request]) == [], "so it does not wait either"
    assert side.reserve_prefix(request, 0, 8) == (0, False)
    side.update_state_after_alloc(request, BLOCKS)
    assert store.looks == 1 and not side.build_connector_meta(None)


@pytest.mark.parametrize("is_looked_up", [True, False])
def test_asking_again_for_a_reservation_makes_no_names(
    is_looked_up: bool, side: OffloadScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream asks in each iteration in which a request waits for room."""

    def fails(*_: object) -> list[bytes]:
        raise AssertionError("a name was made")

    request = Request(1, list(PROMPT))
    side.reserve_prefix(request, 0, 7)
    if is_looked_up:
        side.hold_back([request], [request])
    monkeypatch.setattr(keys_module, "keys_behind", fails)
    for number in range(8, 12):
        assert side.reserve_prefix(request, 0, number) == (0, False)


def test_what_was_reserved_is_put_once_it_is_stored(side: OffloadScheduler) -> None:
    side.index.drop()  # type: ignore[union-attr]  # now there is room
    request: Any = Request(1, list(PROMPT))
    side.reserve_prefix(request, 0, 7)
    side.update_state_after_alloc(request, BLOCKS)
    began = SimpleNamespace(
        request_id=1, new_tokens=PROMPT, new_block_ids=BLOCKS[0], computed_position=4, num_scheduled_tokens=1
    )
    output = SimpleNamespace(new_requests=[began], cached_requests=[])
    (told,) = side.build_connector_meta(output).stores
    end(side.ledger, told)
    (put,) = side.build_connector_meta(None).puts
    assert put.slots == told.slots


def computed(side: OffloadScheduler, prompt: list[int]) -> Any:
    """The step after that which computes all but the last token of a prompt nobody has."""
    request: Any = Request(1, list(prompt))
    side.get_num_new_matched_tokens(request, 0)
    blocks = [list(range(len(prompt)))]
    side.update_state_after_alloc(request, blocks)
    began = SimpleNamespace(
        request_id=1, new_tokens=prompt, new_block_ids=blocks[0], computed_position=len(prompt) - 1,
        num_scheduled_tokens=1,
    )  # fmt: skip
    return side.build_connector_meta(SimpleNamespace(new_requests=[began], cached_requests=[]))


@pytest.fixture
def nothing_there(store: StoreOfAll) -> None:
    store.has_all = False


def free(side: OffloadScheduler) -> int:
    assert isinstance(side.behind, RemoteTier)
    return len(side.behind.puts._staging._free)


@pytest.mark.usefixtures("nothing_there")
def test_what_the_host_tier_declines_goes_to_the_store_all_the_same(side: OffloadScheduler) -> None:
    """They go through slots that the index knows nothing of, and that are free again once the store has them."""
    evicted, staged = side.index.stats().evicted, counters.offload_remote_staged_blocks.value  # type: ignore[union-attr]
    (told,) = computed(side, PROMPT).stores
    assert told.slots == (SLOTS, SLOTS + 1, SLOTS + 2, SLOTS + 3) and told.blocks == (0, 1, 2, 3)
    end(side.ledger, told)
    (put,) = side.build_connector_meta(None).puts
    assert (put.slots, len(set(put.keys))) == (told.slots, 4)
    assert free(side) == 13 - 4
    end(side.ledger, put)
    side.build_connector_meta(None)
    assert free(side) == 13
    assert side.index.stats().evicted == evicted  # type: ignore[union-attr]
    assert counters.offload_remote_staged_blocks.value == staged + 4


@pytest.mark.usefixtures("nothing_there")
def test_what_has_not_arrived_when_the_weights_change_goes_nowhere(side: OffloadScheduler) -> None:
    (told,) = computed(side, PROMPT).stores
    with side._link.weights.changing():
        end(side.ledger, told)
    assert not side.build_connector_meta(None)
    assert free(side) == 13


@pytest.mark.usefixtures("nothing_there")
def test_no_more_goes_that_way_than_is_kept_for_it(side: OffloadScheduler) -> None:
    dropped = counters.offload_remote_dropped_blocks.value
    (told,) = computed(side, list(range(-30, 0))).stores
    assert len(told.slots) == 13
    assert counters.offload_remote_dropped_blocks.value == dropped + 29 - 13


@pytest.mark.usefixtures("nothing_there")
@pytest.mark.parametrize("how", ["fails", "is taken out of the plan", "finds no store"])
def test_slots_come_back_however_it_ends(how: str, side: OffloadScheduler) -> None:
    if how == "is taken out of the plan":
        request: Any = Request(1, list(PROMPT))
        side.get_num_new_matched_tokens(request, 0)
        side.update_state_after_alloc(request, BLOCKS)
        request.context_current_position = 4
        assert side.request_finished(request, BLOCKS)
        assert free(side) == 13 - 4
        side.request_over(1, blocks_stay=False)
    else:
        (told,) = computed(side, PROMPT).stores
        end(side.ledger, told, "the device is gone" if how == "fails" else "")
        puts = side.build_connector_meta(None).puts
        assert len(puts) == (how == "finds no store")
        for put in puts:
            end(side.ledger, put, "there is no store now")
        side.build_connector_meta(None)
    assert free(side) == 13
    assert len(side.ledger) == 0


@pytest.mark.usefixtures("nothing_there")
def test_without_a_store_nothing_is_sent_that_way(side: OffloadScheduler, store: StoreOfAll) -> None:
    store.is_up = False
    assert not computed(side, PROMPT).stores


@pytest.mark.parametrize("slots", [1, 2, 7, 8, 100])
def test_both_parts_of_a_pool_are_the_pool(slots: int) -> None:
    staging = Staging(slots)
    taken = staging.take(slots, slots)
    assert sorted([*range(staging.first), *taken]) == list(range(slots))
    assert staging.first >= 1 and staging.take(1, 1) == ()


def test_answers_leave_half_of_what_is_staged_to_prompts() -> None:
    staging = Staging(80)
    assert sum(len(staging.take(1, 0)) for _ in range(10)) == 5
    assert len(staging.take(10, 2)) == 2
    assert len(staging.take(10, 10)) == 3


@pytest.mark.usefixtures("nothing_there")
@pytest.mark.parametrize("loads", [True, False])
def test_what_is_not_looked_for_is_not_put_again(loads: bool, side: OffloadScheduler) -> None:
    """An operator turns loads off where answers look wrong."""
    side.index.drop()  # type: ignore[union-attr]  # now there is room
    (told,) = computed(side, PROMPT).stores
    end(side.ledger, told)
    (put,) = side.build_connector_meta(None).puts
    end(side.ledger, put)
    request = Request(2, list(PROMPT))
    side.hold_back([request], [request])
    side._switches.load = loads
    side.get_num_new_matched_tokens(request, 0)
    assert len(side.build_connector_meta(None).puts) == loads


def test_an_answer_that_cannot_be_read_costs_the_store_and_not_the_request(
    side: OffloadScheduler, store: StoreOfAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse, "_fuses", {})

    def broken() -> list[LookAnswer]:
        raise RuntimeError("the porter's answer is torn")

    monkeypatch.setattr(store, "take_found", broken)
    assert side.get_num_new_matched_tokens(Request(1, list(PROMPT)), 0) == (0, False)
    assert fuse.of(FUSE).faults == 1
