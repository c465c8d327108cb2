"""Numbers belong to one request, reading resets nothing, and the events alone are enough to rebuild the tree."""

from trtllm_kvfix.native import CacheCounters, SequenceRequest

from .event_mirror import EventMirror
from .scenes import BLOCK, begin, hashes, leave_behind, manager, prompt, push_to_host, run_transfers, tiers_of

COUNTERS = [name for name in dir(CacheCounters) if not name.startswith("_")]


def counters(of: object) -> dict[str, int]:
    return {name: getattr(of, name) for name in COUNTERS if getattr(of, name)}


def test_a_request_is_charged_for_itself_alone() -> None:
    m = manager(primary=12, host=4)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    push_to_host(m, 2, blocks=12)
    batch = [
        SequenceRequest(11, [*prompt(1, 2 * BLOCK), 5]),
        SequenceRequest(12, [*prompt(1, 2 * BLOCK), 6]),
        SequenceRequest(13, prompt(3, 3 * BLOCK)),
    ]
    m.add_sequence_batch(batch)
    fields = ("tokens_reused", "tokens_new", "blocks_reused", "blocks_onboarded", "blocks_new", "blocks_missed")
    rows = {i: tuple(getattr(m.get_request_stats(i), field) for field in fields) for i in (11, 12, 13)}
    assert rows == {11: (8, 1, 2, 2, 1, 0), 12: (8, 1, 2, 0, 1, 0), 13: (0, 12, 0, 0, 3, 3)}
    m.add_token(13)
    assert m.get_request_stats(13).blocks_grown == 1
    assert m.get_request_stats(11).blocks_grown == 0


def test_reading_resets_nothing_and_refresh_cuts_iterations() -> None:
    m = manager(primary=12)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    first = m.get_kv_cache_stats()
    assert counters(m.get_kv_cache_stats().total) == counters(first.total) == counters(first.current)
    assert counters(first.iteration) == {}
    m.refresh_blocks()
    begin(m, 2, [*prompt(1, 2 * BLOCK), 5])
    second = m.get_kv_cache_stats()
    assert counters(second.iteration) == counters(first.total)
    assert second.current.tokens_reused == 2 * BLOCK and second.current.requests == 1
    assert second.total.requests == 2 and second.total.blocks_new == 3
    m.refresh_blocks()
    m.refresh_blocks()
    assert counters(m.get_kv_cache_stats().iteration) == {}
    assert counters(m.get_kv_cache_stats().total) == counters(second.total)


def test_the_summary_adds_up() -> None:
    m = manager(primary=6, host=4)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    begin(m, 2, prompt(2, BLOCK))
    stats = m.get_kv_cache_stats()
    assert (stats.max_num_blocks, stats.free_num_blocks, stats.used_num_blocks) == (6, 5, 1)
    assert (stats.sequences, stats.tokens_per_block) == (1, BLOCK)
    tier = stats.windows[0].primary
    assert (tier.blocks, tier.free, tier.cached, tier.owned, tier.in_flight) == (6, 3, 2, 1, 0)
    assert stats.cache_hit_rate == 0.0
    begin(m, 3, [*prompt(1, 2 * BLOCK), 5])
    assert 0.0 < m.get_kv_cache_stats().cache_hit_rate < 1.0


def test_events_tell_the_story_of_a_block() -> None:
    m = manager(primary=1, host=1, events_max=100)
    tokens = prompt(1, BLOCK)
    leave_behind(m, 1, tokens, lora_id=7)
    [stored] = m.get_latest_events()
    [expected] = hashes(tokens, lora_id=7)
    assert (stored.kind, stored.block_hash, stored.parent_hash) == ("stored", expected, None)
    assert (stored.tokens, stored.lora_id, stored.tier, stored.priority) == (tokens, 7, "primary", 35)
    push_to_host(m, 2, blocks=1)
    [moved] = m.get_latest_events()
    assert (moved.kind, moved.block_hash, moved.tier, moved.tokens) == ("updated", expected, "host", [])
    m.reset_reuse_state()
    [removed] = m.get_latest_events()
    assert (removed.kind, removed.block_hash, removed.tier) == ("removed", expected, "host")
    assert [event.event_id for event in (stored, moved, removed)] == [0, 1, 2]
    assert m.get_latest_events() == []


def test_children_name_their_parents_and_incomplete_blocks_are_not_told() -> None:
    m = manager(primary=8, events_max=100)
    tokens = prompt(1, 2 * BLOCK + 1)
    leave_behind(m, 1, tokens)
    first, second = m.get_latest_events()
    assert [first.block_hash, second.block_hash] == hashes(tokens)
    assert (first.parent_hash, second.parent_hash) == (None, first.block_hash)


def test_a_log_that_nobody_reads_is_bounded_and_says_what_it_lost() -> None:
    m = manager(primary=8, events_max=2)
    leave_behind(m, 1, prompt(1, 5 * BLOCK))
    assert m.get_kv_cache_stats().events_dropped == 3
    assert [event.event_id for event in m.get_latest_events()] == [3, 4]


def test_events_are_off_unless_asked_for() -> None:
    m = manager(primary=8)
    leave_behind(m, 1, prompt(1, BLOCK))
    assert m.get_latest_events() == []
    assert m.get_kv_cache_stats().events_dropped == 0


def test_a_mirror_fed_with_events_alone_knows_every_hash() -> None:
    m = manager(primary=6, host=3, events_max=10_000)
    mirror = EventMirror(hash_bits=128)
    for request_id in range(100):
        leave_behind(m, request_id, prompt(request_id % 7, (1 + request_id % 5) * BLOCK))
        mirror.follow(m.get_latest_events(), 0)
        for family in range(7):
            tokens = prompt(family, 5 * BLOCK)
            told = [mirror.entries.get((None, known)) for known in hashes(tokens)]
            assert tiers_of(m, tokens) == [entry[3] for entry in told if entry], (request_id, family)
        run_transfers(m)
