"""Arrivals: generated ones and those of a trace fit the model, come in order, and keep what they share."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from trtllm_kvfix.tools.bench import runs
from trtllm_kvfix.tools.bench.arrivals import LOADS, Arrival, Load, Sizes, from_trace, generated
from trtllm_kvfix.tools.bench.command import DEFAULT_LOAD, RATE, REQUESTS
from trtllm_kvfix.tools.bench.runs import SMALL, VOCABULARY, run
from trtllm_kvfix.tools.replay.trace import TraceError

SIZES = Sizes(vocabulary=100, length_max=256)


def fit(arrivals: list[Arrival]) -> bool:
    return all(
        0 < len(each.prompt) <= SIZES.length_max - each.answer_tokens
        and 0 < each.answer_tokens <= SIZES.answer_max
        and 0 <= min(each.prompt) <= max(each.prompt) < SIZES.vocabulary
        for each in arrivals
    )


def shared(one: Arrival, other: Arrival) -> int:
    """Tokens with which both begin."""
    pairs = zip(one.prompt, other.prompt, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.prompt), len(other.prompt)))


def written(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("load", LOADS.values(), ids=list(LOADS))
def test_generated_arrivals_fit_and_repeat_one_another(load: Load) -> None:
    arrivals = generated(load, 64, 10.0, SIZES, 3)
    assert len(arrivals) == 64 and fit(arrivals)
    assert [each.at_s for each in arrivals] == sorted(each.at_s for each in arrivals)
    assert max(Counter(each.at_s for each in arrivals).values()) == load.burst
    assert 3 < arrivals[-1].at_s < 12
    assert max(shared(a, b) for i, a in enumerate(arrivals) for b in arrivals[:i]) > SIZES.length_max // 3
    assert generated(load, 64, 10.0, SIZES, 3) == arrivals != generated(load, 64, 10.0, SIZES, 4)


class SteadyClock:
    """A millisecond goes by at each look, however busy the machine is: which requests come together is settled."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def look(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_load_by_default_tells_the_tiers_and_the_ways_to_admit_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    monkeypatch.setattr(runs, "perf_counter", clock.look)
    monkeypatch.setattr(runs, "sleep", clock.sleep)
    sizes = Sizes(VOCABULARY, SMALL.config.length_max)
    arrivals = generated(LOADS[DEFAULT_LOAD], REQUESTS["small"], RATE["small"], sizes, 0)
    model = SMALL.model()
    batched, one_by_one, without_host = (
        run(config, model, arrivals, "cpu")
        for config in (
            SMALL.config,
            replace(SMALL.config, manager="one-by-one"),
            replace(SMALL.config, blocks_host=0),
        )
    )
    assert batched.lost == 0 < one_by_one.lost
    assert without_host.reused < 0.95 * batched.reused


def test_a_trace_keeps_its_rhythm_and_what_its_prompts_share(tmp_path: Path) -> None:
    path = written(
        tmp_path / "trace.jsonl",
        {"timestamp": 1000, "input_length": 1500, "output_length": 300, "hash_ids": [1, 2, 3]},
        {"timestamp": 1500, "input_length": 2000, "output_length": 48, "hash_ids": [1, 2, 9, 10]},
        {"timestamp": 3000, "input_length": 700, "output_length": 1, "hash_ids": [5, 6]},
    )
    first, second, third = arrivals = from_trace(path, 10, 6.0, SIZES)
    assert fit(arrivals)
    assert [each.at_s for each in arrivals] == pytest.approx([0, 0.125, 0.5])
    assert shared(first, second) == 2 * round(512 * 256 / 2048)
    assert shared(first, third) == 0
    assert [each.answer_tokens for each in arrivals] == [32, 6, 1]


def test_a_trace_of_tokens_is_taken_as_it_is_as_far_as_it_fits(tmp_path: Path) -> None:
    path = written(
        tmp_path / "trace.jsonl", {"tokens": [1, 102, 3], "output_length": 4}, {"tokens": [7], "output_length": 1}
    )
    assert [each.prompt for each in from_trace(path, 2, 5.0, SIZES)] == [[1, 2, 3], [7]]


def test_a_bad_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1"):
        from_trace(written(tmp_path / "trace.jsonl", {"tokens": []}), 2, 5.0, SIZES)
