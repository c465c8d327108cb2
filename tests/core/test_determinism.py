"""The same calls give the same state on every rank: no clock, no address and no hash order has a say."""

import os
import random
import subprocess
import sys
from pathlib import Path

from trtllm_kvfix.native import BlockManager, BlockManagerConfig, SequenceRequest

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = 100_000


def digests(seed: int, operations: int, **environment: str) -> str:
    command = [sys.executable, "-m", "tests.core.workload", str(seed), str(operations)]
    env = {**os.environ, **environment}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_two_processes_that_do_the_same_end_in_the_same_state() -> None:
    one = digests(1, OPERATIONS, PYTHONHASHSEED="1")
    other = digests(1, OPERATIONS, PYTHONHASHSEED="2", MALLOC_ARENA_MAX="1", MALLOC_TOP_PAD_="1000000")
    assert one == other
    assert len(set(one.split())) == 10, "ten digests on the way, all different"


def test_two_that_do_not_do_the_same_differ() -> None:
    assert digests(1, 20_000) != digests(2, 20_000)


def test_no_result_depends_on_the_seed() -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(3) for _ in range(rng.randrange(1, 40))] for _ in range(200)]
    digests = set()
    for seed in (0, 1, 2**64, 2**128 - 1):
        config = BlockManagerConfig(tokens_per_block=4, blocks_primary=60, seed=seed)
        assert config.seed == seed
        m = BlockManager(config)
        for request_id, prompt in enumerate(prompts):
            m.add_sequence(SequenceRequest(request_id, prompt))
            m.complete(m.take_transfers().ticket)
            m.store_context_blocks(request_id, len(prompt))
            m.remove_sequence(request_id)
        m.check_invariants()
        digests.add(m.digest())
    assert len(digests) == 1


def test_ranks_with_one_seed_have_one_set_of_hashes_and_others_have_others() -> None:
    def shown(seed: int) -> tuple[int, ...]:
        m = BlockManager(BlockManagerConfig(tokens_per_block=4, blocks_primary=8, events_max=10, seed=seed))
        m.add_sequence(SequenceRequest(1, list(range(16)), salt="tenant"))
        m.store_context_blocks(1, 16)
        return tuple(event.block_hash for event in m.get_latest_events())

    assert shown(1) == shown(1)
    families = [set(shown(seed)) for seed in (0, 1, 2**64, 2**127)]
    assert len(set.union(*families)) == 4 * 4, "one bit of 128 changes every hash"
    assert len({one % 2**64 for one in set.union(*families)}) == 4 * 4, "first halves alone too"


def test_a_seed_that_nobody_gives_is_drawn() -> None:
    drawn = {BlockManagerConfig(tokens_per_block=4, blocks_primary=4).seed for _ in range(4)}
    assert len(drawn) == 4
