"""The connector does what `replay --host-tier connector` predicts."""

import pytest

from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Replay
from trtllm_kvfix.tools.replay.outcome import CacheShape, HostTierKind, ReplayOutcome

from .real_tier import BLOCK_BYTES, RealTier
from .shapes import tiny_workload


def counted(outcome: ReplayOutcome) -> dict[str, object]:
    return outcome.model_dump(exclude={"elapsed_s"})


# Host blocks: fewer than one conversation has, fewer than all have, and enough for all.
CASES = [("tiny", 40), ("small", 40), ("small", 400), ("small", 4000), ("chat", 400), ("chat", 4000)]


@pytest.mark.parametrize(("name", "blocks_host"), CASES)
def test_the_connector_does_what_the_replay_predicts(
    name: str, blocks_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_OFFLOAD_HOST_BYTES", str(blocks_host * BLOCK_BYTES))
    made = generate(name, 3) if name != "tiny" else None
    workload = tiny_workload() if made is None else made.workload
    base = CacheShape(
        tokens_per_block=32, blocks_primary=64, blocks_host=0, bytes_per_block=None, max_batch_size=4,
        max_num_tokens=1024, tokens_per_iteration=1, iteration_ms=0,
    ) if made is None else made.shape  # fmt: skip
    shape = base.model_copy(update={"blocks_host": blocks_host, "host_tier": HostTierKind.CONNECTOR})
    predicted = Replay(workload, shape).run()
    tier = RealTier(shape)
    found = tier.run(workload, shape)
    tier.close()
    assert tier.foreign == []
    assert counted(found) == counted(predicted)
    assert found.moved.blocks_to_host > 0
    assert blocks_host < 4000 or found.tokens.host > 0


@pytest.mark.parametrize("blocks_host", [60, 100, 400])
def test_a_tier_of_any_size_is_not_written_more_than_is_computed(
    blocks_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that do not fit together would store each other out of the tier with every block that they fill."""
    monkeypatch.setenv("TRTLLM_KVFIX_OFFLOAD_HOST_BYTES", str(blocks_host * BLOCK_BYTES))
    made = generate("small", 3)
    shape = made.shape.model_copy(update={"blocks_host": blocks_host, "host_tier": HostTierKind.CONNECTOR})
    tier = RealTier(shape)
    found = tier.run(made.workload, shape)
    tier.close()
    answers = sum(request.output_length for request in made.workload.requests)
    computed = (found.tokens.computed + answers) / shape.tokens_per_block
    assert 0 < found.moved.blocks_to_host <= 1.1 * computed
    assert found.tokens.host > 0, "and what little it holds is used"
