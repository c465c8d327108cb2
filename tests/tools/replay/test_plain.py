"""The native scheduler, which passes over iterations, counts what a plain one counts that steps through each."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_kvfix.native import ReplayReuse, ReplayTally
from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import AdmissionKind, CacheShape
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TraceRequest

from .plain import Plain

TOKENS_PER_ID = 6  # no multiple of a block


def shown(tally: ReplayTally) -> dict[str, Any]:
    def fields(of: ReplayTally | ReplayReuse) -> dict[str, Any]:
        return {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}

    return fields(tally) | {"tokens": fields(tally.tokens), "blocks": fields(tally.blocks)}


def check_alike(workload: Workload, shape: CacheShape, admission: AdmissionKind) -> ReplayTally:
    native = Replay(workload, shape, admission)
    native.run()
    plain = Plain(workload, shape, admission)
    assert shown(native._scheduler.tally) == asdict(plain.run())
    assert str(native._manager.get_kv_cache_stats().total) == str(plain.manager.get_kv_cache_stats().total)
    return native._scheduler.tally


@pytest.mark.parametrize("admission", list(AdmissionKind))
@pytest.mark.parametrize("name", ["small", "chat"])
def test_a_generated_load_counts_alike(name: str, admission: AdmissionKind) -> None:
    made = generate(name, 5)
    tally = check_alike(made.workload, made.shape, admission)
    assert tally.tokens.host > 0
    assert admission is AdmissionKind.BATCH or name == "chat" or tally.promises_broken > 0


@st.composite
def requests(draw: st.DrawFn) -> TraceRequest:
    """Requests from few ids and few tokens, so that beginnings meet; sometimes with another salt."""
    at_ms = draw(st.sampled_from([0.0, 0.3, 7.0, 40.0]))
    salt = draw(st.sampled_from([None, None, None, "other"]))
    if draw(st.booleans()):
        ids = np.array(draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)), np.int64)
        length = len(ids) * TOKENS_PER_ID - draw(st.integers(0, TOKENS_PER_ID - 1))
        return TraceRequest(1, length, draw(st.integers(0, 30)), at_ms, hash_ids=ids, salt=salt)
    tokens = np.array(draw(st.lists(st.integers(0, 1), min_size=1, max_size=20)), np.int32)
    answer = np.array(draw(st.lists(st.integers(0, 1), max_size=20)), np.int32)
    return TraceRequest(1, len(tokens), len(answer), at_ms, tokens=tokens, output_tokens=answer, salt=salt)


@st.composite
def shapes(draw: st.DrawFn) -> CacheShape:
    sequences, step = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    return CacheShape(
        tokens_per_block=4,
        blocks_primary=draw(st.integers(4, 24)),
        blocks_host=draw(st.sampled_from([0, 3, 40])),
        bytes_per_block=None,
        max_batch_size=sequences,
        max_num_tokens=sequences * step + draw(st.integers(0, 30)),
        tokens_per_iteration=step,
        iteration_ms=draw(st.sampled_from([0, 0.1, 5.0])),
    )


@settings(max_examples=200)
@given(load=st.lists(requests(), min_size=1, max_size=25), shape=shapes(), admission=st.sampled_from(AdmissionKind))
def test_any_load_counts_alike(load: list[TraceRequest], shape: CacheShape, admission: AdmissionKind) -> None:
    load = sorted(load, key=lambda one: one.timestamp_ms)
    check_alike(Workload("any", load, TokenBook(load, TOKENS_PER_ID)), shape, admission)
