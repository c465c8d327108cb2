"""The scheduler model, on workloads small enough to count by hand."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import BlockManager, BlockManagerConfig
from trtllm_kvfix.tools.replay import engine
from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Replay
from trtllm_kvfix.tools.replay.outcome import AdmissionKind, ReplayOutcome
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TraceRequest

from .shapes import cold, shape, tiny_workload, workload
from .watcher import Watcher


def test_one_at_a_time_the_tiny_trace_reuses_what_one_can_count() -> None:
    """Line 2 shares an id (512) with line 1; line 4 repeats line 1 but for its last token (1,023); line 6 repeats the
    40 tokens of line 5 and the 9 of its answer that were fed back (49); line 7 has a salt of its own (0)."""
    outcome = Replay(tiny_workload(), shape()).run()
    assert (outcome.requests.finished, outcome.requests.refused, outcome.partial) == (6, 0, False)
    assert outcome.tokens.primary == 512 + 1023 + 49
    assert outcome.tokens.host == 0
    assert outcome.tokens.computed == 1024 + 388 + 1 + 40 + 6 + 1024
    assert outcome.tokens.hit_rate == pytest.approx(1584 / 4067)
    # Blocks of 32: 16 of line 2, 32 of line 4 (its last one in part), 2 of line 6 (likewise).
    assert outcome.blocks.primary == 16 + 32 + 2
    assert outcome.kept_its_promise


def test_every_request_passes_and_every_token_is_counted_once() -> None:
    made, watcher = generate("chat", seed=3), Watcher()
    outcome = Replay(made.workload, made.shape, tier=watcher).run()
    requests = made.workload.requests
    assert outcome.requests.finished == len(requests)
    tokens = outcome.tokens
    assert tokens.primary + tokens.host + tokens.computed == sum(request.input_length for request in requests)
    assert sorted(id for batch in watcher.batches for id in batch) == list(range(len(requests)))
    stats = watcher.manager.get_kv_cache_stats()
    assert stats.sequences == 0
    assert stats.total.tokens_reused == tokens.primary + tokens.host


@pytest.mark.parametrize("admission", list(AdmissionKind))
def test_the_same_replay_gives_the_same_numbers(admission: AdmissionKind) -> None:
    def run() -> ReplayOutcome:
        made = generate("small", seed=1)
        return Replay(made.workload, made.shape, admission).run().model_copy(update={"elapsed_s": 0.0})

    assert run() == run()


def test_a_prompt_beyond_the_budget_is_admitted_alone_and_computed_in_chunks() -> None:
    requests = [cold(1, 250), cold(2, 30), cold(3, 30)]
    watcher = Watcher()
    outcome = Replay(workload(requests), shape(max_batch_size=3, max_num_tokens=100), tier=watcher).run()
    assert watcher.batches == [[0], [1], [2]]  # 1 fits beside the last 50 tokens of 0, then 20 are left for 2
    assert watcher.running == [[(0, 0)], [(0, 100)], [(0, 200), (1, 0)], [(2, 0)]]
    assert outcome.budget.deferred == 1
    assert outcome.kept_its_promise


def test_generating_sequences_use_budget_that_prompts_then_lack() -> None:
    requests = [cold(1, 10, answer=5), cold(2, 10, answer=5), cold(3, 20)]
    watcher = Watcher()
    one = shape(max_batch_size=3, max_num_tokens=21, tokens_per_iteration=1)
    Replay(workload(requests), one, tier=watcher).run()
    # 0 and 1 take 20 of 21; then 2 of 21 go to their answers, 19 are left and 2 is computed in chunks of 19 and 1.
    assert watcher.batches == [[0, 1], [2]]
    assert [dict(running).get(2) for running in watcher.running[:3]] == [None, 0, 19]


def test_no_sequence_is_admitted_that_the_pool_could_not_carry_to_its_end() -> None:
    """Each needs 3 blocks and one spare: two fit 8 blocks, the third waits for one of them to end."""
    requests = [cold(line, 60, answer=37) for line in (1, 2, 3)]
    watcher = Watcher()
    outcome = Replay(workload(requests), shape(blocks_primary=8, max_batch_size=3), tier=watcher).run()
    assert watcher.batches == [[0, 1], [2]]
    assert outcome.requests.finished == 3


def test_a_request_larger_than_the_pool_is_refused_and_counted() -> None:
    requests = [cold(1, 500), cold(2, 60), cold(3, 60, answer=500)]
    outcome = Replay(workload(requests), shape(blocks_primary=8)).run()
    assert (outcome.requests.refused, outcome.requests.finished) == (2, 1)


def test_the_answer_of_a_refused_request_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answer(_book: TokenBook, index: int) -> NDArray[np.int32]:
        asked.append(index)
        return np.zeros(1, np.int32)

    monkeypatch.setattr(TokenBook, "answer", answer)
    Replay(workload([cold(1, 60, answer=500), cold(2, 60)]), shape(blocks_primary=8)).run()
    assert asked == [1]


def test_answers_grow_by_tokens_per_iteration() -> None:
    def iterations(tokens_per_iteration: int) -> int:
        one = workload([cold(1, 10, answer=21)])
        return Replay(one, shape(tokens_per_iteration=tokens_per_iteration)).run().iterations

    # One iteration computes the prompt and with it the first token; the other 20 follow.
    assert [iterations(count) for count in (1, 3, 20, 50)] == [21, 8, 2, 2]


def test_timestamps_hold_requests_back_when_an_iteration_has_a_length() -> None:
    requests = [cold(1, 10, answer=10, at_ms=0), cold(2, 10, at_ms=35), cold(3, 10, at_ms=1_000_000)]
    watchers = Watcher(), Watcher()
    held = Replay(workload(requests), shape(max_batch_size=3, iteration_ms=10), tier=watchers[0]).run()
    at_once = Replay(workload(requests), shape(max_batch_size=3), tier=watchers[1]).run()
    assert [watcher.batches for watcher in watchers] == [[[0], [1], [2]], [[0, 1, 2]]]
    assert held.iterations == 11  # ten until the first ends, then the long gap is skipped
    assert at_once.iterations == 10


def test_host_blocks_serve_what_primary_could_not_keep() -> None:
    """Two prompts that do not fit together, in turns: without host blocks nothing is reused."""
    requests = [
        TraceRequest(line, 256, 1, tokens=np.arange(256, dtype=np.int32) + 1000 * (line % 2)) for line in range(6)
    ]
    without = Replay(workload(requests), shape(blocks_primary=10)).run()
    host = shape(blocks_primary=10, blocks_host=16, bytes_per_block=1000)
    with_host = Replay(workload(requests), host, tier=Watcher()).run()
    assert without.tokens.hit_rate < 0.2
    assert with_host.tokens.host > 0
    assert with_host.tokens.primary + with_host.tokens.host == 4 * 255
    assert with_host.moved.bytes_to_primary == 1000 * with_host.moved.blocks_to_primary > 0
    assert without.moved.bytes_to_primary is None


def test_ctrl_c_ends_the_run_with_what_was_counted() -> None:
    def interrupt(finished: int) -> None:
        if finished >= 50:
            raise KeyboardInterrupt

    made = generate("small", seed=0)
    outcome = Replay(made.workload, made.shape).run(interrupt)
    assert outcome.partial
    assert 50 <= outcome.requests.finished < 60
    assert outcome.tokens.computed > 0


def test_ctrl_c_is_heard_between_two_native_calls() -> None:
    """Ctrl-C is heard however long a request goes on, and whatever else waits."""
    calls: list[int] = []
    made = workload([cold(1, 10, answer=100_000)])
    replay = Replay(made, shape(blocks_primary=4000))

    def interrupt(finished: int) -> None:
        calls.append(finished)
        raise KeyboardInterrupt

    outcome = replay.run(interrupt)
    assert outcome.partial
    assert calls == [0]
    assert outcome.requests.finished == 0
    assert 0 < outcome.iterations < 100_000


def test_a_tier_that_fails_ends_the_replay_with_its_own_error() -> None:
    class Failing(Watcher):
        def step(self, running: object) -> None:
            raise RuntimeError(f"no room for {running}")

    with pytest.raises(RuntimeError, match=r"no room for \[\(0, 0\)\]"):
        Replay(tiny_workload(), shape(), tier=Failing()).run()


def test_a_budget_that_generation_alone_would_exceed_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_num_tokens is 15: 4 sequences generating 4 tokens each need 16"):
        Replay(tiny_workload(), shape(max_batch_size=4, max_num_tokens=15, tokens_per_iteration=4))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_num_tokens": 2**31}, "max_num_tokens is 2147483648: at most 2147483647 can be modelled"),
        ({"iteration_ms": inf}, "iteration_ms is inf: a number of milliseconds"),
        ({"iteration_ms": nan}, "iteration_ms is nan: a number of milliseconds"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        Replay(tiny_workload(), shape(**options))


def test_pools_beyond_this_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_config: BlockManagerConfig) -> BlockManager:
        raise MemoryError

    monkeypatch.setattr(engine, "BlockManager", no_memory)
    with pytest.raises(
        SettingsError, match="128 primary and 0 host blocks of 32 tokens does not fit this machine's memory"
    ):
        Replay(tiny_workload(), shape())
