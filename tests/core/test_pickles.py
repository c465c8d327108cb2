"""Values that travel: pickles and texts."""

import copy
import pickle

import pytest

from trtllm_kvfix.native import BlockManagerConfig, Retention, SequenceRequest, block_hashes

from .scenes import BLOCK, SEED, manager, prompt, run_transfers

CONFIGS = [
    BlockManagerConfig(tokens_per_block=4, blocks_primary=8, seed=SEED),
    BlockManagerConfig(
        tokens_per_block=2,
        blocks_primary={4: 8, 9: 7},
        blocks_host={4: 1, 9: 2},
        window_sizes=[4, 9],
        max_beam_width=3,
        block_reuse=False,
        partial_reuse=False,
        copy_on_partial_reuse=False,
        offload_priority_min=7,
        host_admission="adaptive",
        events_max=9,
        hash_bits=5,
        seed=1,
    ),
]


def fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}


@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "everything"])
@pytest.mark.parametrize("again", [lambda v: pickle.loads(pickle.dumps(v)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_config_comes_back_with_its_seed(config: BlockManagerConfig, again: object) -> None:
    assert fields(again(config)) == fields(config)  # type: ignore[operator]


def test_a_config_does_not_show_its_seed() -> None:
    assert str(SEED) not in repr(CONFIGS[0]) and f"{SEED:x}" not in repr(CONFIGS[0])
    assert repr(CONFIGS[1]).startswith(
        "BlockManagerConfig(tokens_per_block=2, windows=[Window(size=4, blocks_primary=8, blocks_host=1), Window(size=9"
    )


@pytest.mark.parametrize("salt", [None, "text", b"raw", -5])
def test_a_request_comes_back_as_the_same_content(salt: str | bytes | int | None) -> None:
    retention = Retention([(0, 4, 50, None), (4, None, 60, 7)], 20, 30)
    request = SequenceRequest(
        7, prompt(1, 9), beam_width=2, lora_id=-3, salt=salt, extra_keys=[(1, 5, b"x")], retention=retention
    )
    again = pickle.loads(pickle.dumps(request))
    assert block_hashes(again, CONFIGS[0]) == block_hashes(request, CONFIGS[0])
    assert {**fields(again), "retention": None} == {**fields(request), "retention": None}
    assert fields(again.retention) == fields(retention)
    assert (again.salt, again.extra_keys) == (salt, [(1, 5, b"x")])
    assert "text" not in repr(request), "a salt may be a secret"


def test_a_pickle_that_was_tampered_with_is_checked_as_any_request() -> None:
    make, _ = SequenceRequest(1, [1]).__reduce__()
    with pytest.raises(ValueError, match="tokens"):
        make(tokens=[])


def test_what_is_answered_can_be_read_in_a_log() -> None:
    m = manager(primary=2, host=2, events_max=10)
    admission = m.add_sequence_batch([SequenceRequest(1, prompt(1, BLOCK))])
    assert repr(admission) == "BatchAdmission(admitted=1, deferred=0)"
    assert repr(admission.admitted[0]).startswith("Admission(request_id=1, tokens_reused=0, tokens_new=4")
    m.store_context_blocks(1, BLOCK)
    [event] = m.get_latest_events()
    assert f"block_hash={event.block_hash:#034x}" in repr(event) and "kind='stored'" in repr(event)
    m.suspend_sequence(1)
    assert repr(m.take_transfers()) == "TransferBatch(ticket=1, items=1)"
    stats = m.get_kv_cache_stats()
    assert repr(stats).startswith("KvCacheStats(sequences=0, sequences_suspended=1, max_num_blocks=2")
    assert repr(stats.current) == (
        "CacheCounters(requests=1, tokens_new=4, blocks_new=1, blocks_missed=1, blocks_stored=1, blocks_offloaded=1)"
    )
    assert "primary=TierStats(blocks=2, free=1, cached=1, owned=0, in_flight=0)" in repr(stats.windows[0])
    assert repr(m.get_request_stats(1)).startswith("RequestStats(tokens_reused=0, tokens_new=4")
    free = stats.free_num_blocks
    assert repr(m) == f"BlockManager(tokens_per_block=4, windows=1, blocks=2, free={free}, sequences=0)"
    run_transfers(m)
