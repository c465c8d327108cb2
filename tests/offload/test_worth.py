"""Loading is worth it where it is sooner over than computing, as far as both have been measured."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from trtllm_kvfix import cli
from trtllm_kvfix.offload import scheduler, tier_report
from trtllm_kvfix.offload.remote.scheduler import FAILURES_MIN
from trtllm_kvfix.offload.scheduler import PAUSE_S_MAX, Pause
from trtllm_kvfix.offload.worth import CLASSES, FORGET_S, HitClasses, HostWorth, Prefill, Worth

from .conftest import MakeBench, serve_alone
from .upstream_double import Request

GB = 10**9


def prefill(tokens_per_s: float) -> Prefill:
    made = Prefill()
    made.note_step(0.0, int(tokens_per_s))
    made.note_step(1.0, 0)
    return made


def measured(tokens_per_s: float, bytes_per_s: float) -> Worth:
    worth = Worth(prefill(tokens_per_s))
    worth.note_load(1.0, int(bytes_per_s), 1.0)
    return worth


@pytest.mark.parametrize(
    ("nbytes", "tokens", "waiting", "is_worth"),
    [(GB, 20_000, 0, True), (GB, 5_000, 0, False), (GB, 20_000, 3 * GB, False), (GB, 10_000, 0, True)],
)
def test_bytes_are_weighed_against_tokens(nbytes: int, tokens: int, waiting: int, is_worth: bool) -> None:
    """A second for each GB, and for each 10,000 tokens."""
    assert measured(10_000, GB).estimate(1.0, nbytes, tokens, waiting).is_worth == is_worth


def test_the_estimate_is_in_seconds() -> None:
    assert measured(10_000, GB).estimate(1.0, 3 * GB, 5_000, GB) == (4.0, 0.5)


def test_what_was_never_measured_is_loaded() -> None:
    assert Worth(Prefill()).estimate(0.0, GB, 1, 0).is_worth
    worth = Worth(Prefill())
    worth.note_load(0.0, 1, 1.0)
    assert worth.estimate(0.0, GB, 1, 0).is_worth


def test_a_slow_store_is_tried_again_in_the_end() -> None:
    worth = measured(10_000, GB / 8)
    assert not worth.estimate(1.0, GB, 10_000, 0).is_worth
    assert not worth.estimate(1.0 + 2 * FORGET_S, GB, 10_000, 0).is_worth
    assert worth.estimate(1.0 + 3 * FORGET_S, GB, 10_000, 0).is_worth


def test_steps_that_say_nothing_of_prefill_are_left_out() -> None:
    worth = Prefill()
    for began, tokens in ((0.0, 10), (1.0, 1000), (11.0, 1000), (11.0, 1000)):  # few, waited, no time
        worth.note_step(began, tokens)
    assert worth.tokens_per_s is None
    worth.note_step(12.0, 0)
    assert worth.tokens_per_s == 1000


def test_measurements_are_averaged() -> None:
    worth = measured(10_000, GB)
    worth.note_load(2.0, 2 * GB, 1.0)
    assert worth.bytes_per_s is not None and GB < worth.bytes_per_s < 2 * GB


@pytest.mark.parametrize(
    ("tokens", "is_worth"), [(199, False), (201, True), (1024, True), (1025, False), (2999, False), (3001, True)]
)
def test_a_host_hit_is_weighed_by_what_loads_of_its_class_took(tokens: int, is_worth: bool) -> None:
    """20 ms for up to 1,024 tokens, 300 ms for up to 4,096, and 10,000 tokens a second."""
    worth = HostWorth(prefill(10_000))
    worth.note_load(1.0, 64, 0.02)
    worth.note_load(1.0, 2000, 0.3)
    assert worth.estimate(1.0, tokens).is_worth == is_worth


def test_a_class_without_a_load_is_loaded_and_a_slow_one_is_tried_again() -> None:
    worth = HostWorth(prefill(10_000))
    assert worth.estimate(1.0, 100).is_worth
    worth.note_load(1.0, 100, 0.08)
    assert worth.estimate(1.0, CLASSES[0] + 1).is_worth
    assert not worth.estimate(1.0, 100).is_worth and not worth.estimate(1.0 + 2 * FORGET_S, 100).is_worth
    assert worth.estimate(1.0 + 3 * FORGET_S, 100).is_worth


def test_classes_tell_what_was_decided() -> None:
    hits, worth = HitClasses("host"), measured(10_000, GB)
    for tokens in (100, 1024, 1025, 100_000):
        estimate = worth.estimate(1.0, GB // 10, tokens, 0)
        hits.note(tokens, estimate, is_loaded=estimate.is_worth)
    told = [(one["tokens_max"], one["hits"], one["loaded"]) for one in hits.report()]
    assert told == [(1024, 2, 1), (4096, 1, 1), (None, 1, 1)]
    assert hits.report()[0]["load_ms"] == pytest.approx(100)
    assert hits.report()[0]["compute_ms"] == pytest.approx(10 + 0.3 * 92.4)


@pytest.mark.parametrize(("tokens_per_s", "loaded"), [(3, 20), (5, 0)])
def test_a_request_loads_if_that_is_sooner_than_computing(
    tokens_per_s: float, loaded: int, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 tokens, whose load took 5 s: at 3 tokens a second they are computed later, and at 5 sooner."""
    monkeypatch.setattr(scheduler, "REPORTED_EVERY", 2)
    monkeypatch.setattr(scheduler, "monotonic", lambda: 7.0)
    bench, tokens = make_bench(min_reuse_blocks="auto"), [9, *range(1, 24)]
    assert serve_alone(bench, Request(1, list(tokens))) == 0
    worth = bench.scheduler.side.worth
    worth.prefill.tokens_per_s = tokens_per_s
    worth.note_load(7.0, 20, 5.0)
    assert serve_alone(bench, Request(2, list(tokens))) == loaded
    (entry,) = tier_report.live(Path(os.environ["TRTLLM_KVFIX_RUNTIME_DIR"]))
    is_loaded, compute_ms = int(loaded > 0), pytest.approx(1000 * 20 / tokens_per_s)
    told = {"tier": "host", "tokens_max": 1024, "hits": 1, "loaded": is_loaded}
    assert entry["hits"] == [told | {"load_ms": 5000.0, "compute_ms": compute_ms}]
    said = CliRunner().invoke(cli.main, ["status"], terminal_width=120).output.splitlines()
    (row,) = [line.split() for line in said if "1,024" in line]
    assert row[:5] == ["0", "host", "1,024", "1", str(is_loaded)]
    assert f"{20_000 / tokens_per_s:,.1f} ms" in "".join(said)


def test_a_store_that_does_not_answer_is_left_alone_for_longer_and_longer() -> None:
    pause, now = Pause(FAILURES_MIN), 0.0
    for _ in range(FAILURES_MIN - 1):
        pause.failed(now)
        assert pause.is_over(now)
    lengths = []
    for _ in range(10):
        pause.failed(now)
        assert not pause.is_over(now)
        length = next(seconds for seconds in range(1, 100) if pause.is_over(now + seconds))
        lengths.append(length)
        now += length
    assert lengths == sorted(lengths) and lengths[-1] == PAUSE_S_MAX
    pause.succeeded()
    pause.failed(now)
    assert pause.is_over(now)
