"""Events as upstream's consumers read them: by the names of classes and fields."""

from typing import Any

import pytest

from tests.managers.making import Bench, bench
from tests.threads import run_together
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.reports import EventManager

FIELDS = {
    "KVCacheCreatedData": {"num_blocks_per_cache_level"},
    "KVCacheStoredData": {"parent_hash", "blocks"},
    "KVCacheRemovedData": {"block_hashes"},
    "KVCacheUpdatedData": {"block_hash", "cache_level", "priority"},
}
BLOCK_FIELDS = {"block_hash", "tokens", "lora_id", "cache_level", "priority", "mm_keys", "cache_salt"}


def flushed(b: Bench) -> list[Any]:
    b.impl.flush_iteration_events()
    return b.impl.get_latest_events(0)


class Follower:
    """Knows what is cached, and where, from the events alone."""

    def __init__(self) -> None:
        self.level_of: dict[int, int] = {}
        self.parent_of: dict[int, int | None] = {}
        self.next_id = 0

    def follow(self, events: list[Any]) -> list[str]:
        for event in events:
            assert (event.event_id, event.window_size, event.attention_dp_rank) == (self.next_id, 64, None)
            self.next_id += 1
            kind = type(event.data).__name__
            assert FIELDS[kind] <= set(vars(event.data))
            getattr(self, kind)(event.data)
        return [type(event.data).__name__[7:-4] for event in events]

    def KVCacheCreatedData(self, data: Any) -> None:  # noqa: N802  upstream's name
        assert data.num_blocks_per_cache_level == [4, 8]

    def KVCacheStoredData(self, data: Any) -> None:  # noqa: N802  upstream's name
        parent = data.parent_hash
        assert parent is None or parent in self.level_of
        for block in data.blocks:
            assert set(vars(block)) >= BLOCK_FIELDS
            self.level_of[block.block_hash], self.parent_of[block.block_hash] = block.cache_level, parent
            parent = block.block_hash

    def KVCacheRemovedData(self, data: Any) -> None:  # noqa: N802  upstream's name
        for each in data.block_hashes:
            del self.level_of[each]

    def KVCacheUpdatedData(self, data: Any) -> None:  # noqa: N802  upstream's name
        if data.cache_level is not None:
            assert self.level_of[data.block_hash] == data.cache_level.old_value
            self.level_of[data.block_hash] = data.cache_level.new_value


def test_a_follower_knows_what_is_cached_and_in_which_tier() -> None:
    with bench(blocks=4, host=8, event_manager=EventManager(64)) as b:
        router = Follower()
        assert router.follow(flushed(b)) == ["Created"]
        b.served(1, range(16))
        assert b.impl.get_latest_events(0) == [], "nothing is shown before it is flushed"
        (event,) = events = flushed(b)
        assert router.follow(events) == ["Stored"]
        assert [each.token_id for each in event.data.blocks[1].tokens] == [4, 5, 6, 7]
        assert [each.token_extra_id for each in event.data.blocks[1].tokens] == [0] * 4
        assert event.data.parent_hash is None
        b.served(2, range(100, 116))
        assert set(router.follow(flushed(b))) == {"Updated", "Stored"}
        assert sorted(router.level_of.values()) == [0] * 4 + [1] * 4, "the first prompt has gone to the host tier"
        b.impl.reset_reuse_state()
        assert router.follow(flushed(b)) == ["Removed"]
        assert router.level_of == {}


def test_priorities_that_change_are_told_with_both_values() -> None:
    with bench(event_manager=EventManager(64)) as b:
        b.served(1, range(8))
        again = b.request(2, range(8))
        again.py_kvfix_retention = kept(80)
        b.prepare([again])
        changed = [each.data for each in flushed(b) if type(each.data).__name__ == "KVCacheUpdatedData"]
        assert [(each.priority.old_value, each.priority.new_value) for each in changed] == [(35, 80)]
        assert all(each.cache_level is None for each in changed)


def kept(priority: int) -> Any:
    from trtllm_kvfix.managers.prompts import NotedRetention  # noqa: PLC0415

    return NotedRetention(((0, None, priority, None),), 35, None)


def test_the_oldest_go_where_nobody_reads() -> None:
    with bench(blocks=40, event_manager=EventManager(2)) as b:
        for number in range(1, 5):
            b.served(number, range(100 * number, 100 * number + 4))
            b.impl.flush_iteration_events()
        assert [each.event_id for each in b.impl.get_latest_events(0)] == [3, 4]


def test_a_reader_waits_for_the_first_event() -> None:
    events = EventManager(4)
    found: list[Any] = []
    run_together(lambda: found.extend(events.get_latest_events(None)), lambda: events.created(64, [4, 0]))
    assert [each.event_id for each in found] == [0]


def test_ranks_that_show_no_events_answer_with_none() -> None:
    with bench() as b:
        b.served(1, range(8))
        assert flushed(b) == []


def test_events_of_attention_data_parallelism_are_refused() -> None:
    with pytest.raises(NotServed, match="attention data parallelism"):
        EventManager(4, attention_dp_rank=0, attention_dp_size=2)
