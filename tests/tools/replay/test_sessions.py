"""Agentic sessions: what their calls, subagents, scopes and times become."""

import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import Trace, TraceError, read_trace

from .shapes import shape


def call(t: float, ids: list[int], length: int | None = None, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": length or 64 * len(ids), "out": 3, "hash_ids": ids, **more}


def session(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "one", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}


def subagent(t: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": "a", "status": "completed", "requests": list(requests)}


def read(folder: Path, *sessions: dict[str, Any], skip_bad: bool = False) -> Trace:
    path = folder / "sessions.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in sessions))
    return read_trace(path, tokens_per_hash_id=64, skip_bad=skip_bad)


def times(trace: Trace) -> list[float]:
    return [request.timestamp_ms for request in trace.requests]


def ids(trace: Trace) -> list[list[int]]:
    return [[] if request.hash_ids is None else request.hash_ids.tolist() for request in trace.requests]


def test_calls_of_all_agents_and_sessions_come_by_their_times(tmp_path: Path) -> None:
    first = session(call(0, [1]), subagent(2, call(2.5, [1, 7])), call(9, [1, 2]))
    trace = read(tmp_path, first, session(call(1, [1], type="s")))
    assert times(trace) == [0, 1000, 2500, 9000]
    assert [request.line for request in trace.requests] == [1, 2, 1, 1]


def test_times_of_a_subagent_may_count_from_its_own_beginning(tmp_path: Path) -> None:
    nested = subagent(5, call(0, [3]), subagent(1, call(0.5, [4])))
    assert times(read(tmp_path, session(call(0, [1]), nested))) == [0, 5000, 6500]


def test_ids_mean_the_same_in_a_session_and_its_subagents_and_in_no_other(tmp_path: Path) -> None:
    local = ids(read(tmp_path, session(call(0, [1]), subagent(1, call(1, [1]))), session(call(2, [1]))))
    assert local[0] == local[1] != local[2]
    everywhere = {"hash_id_scope": "global"}
    shared = ids(read(tmp_path, session(call(0, [1]), **everywhere), session(call(2, [1]), **everywhere)))
    assert shared[0] == shared[1] == [1]


def test_a_part_of_a_prompt_without_an_id_is_like_no_other(tmp_path: Path) -> None:
    got = ids(
        read(tmp_path, session(call(0, [1, 2], length=200), call(1, [1, 2], length=200), call(2, [1, 2], length=70)))
    )
    assert [len(each) for each in got] == [4, 4, 2]
    assert got[0][:2] == got[1][:2] == got[2]
    assert not set(got[0][2:]).intersection(got[1][2:])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (session(call(0, [1]), block_size=16), "block_size is 16, and --tokens-per-hash-id 64: give the same"),
        (session({**call(0, [1]), "type": "x"}), "requests.0: Input tag 'x' found"),
        (session(call(-1, [1])), "requests.0.n.t"),
        (session(call(0, [1 << 41])), "requests.0.n.hash_ids.0"),
    ],
)
def test_a_bad_session_is_refused_by_its_line_or_left_out_whole(
    tmp_path: Path, bad: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TraceError) as refused:
        read(tmp_path, session(call(0, [1])), bad)
    assert "sessions.jsonl line 2: " in str(refused.value)
    assert reason in str(refused.value)
    left = read(tmp_path, session(call(0, [1])), bad, skip_bad=True)
    assert (len(left.requests), len(left.lines_bad)) == (1, 1)


def test_a_subagent_reuses_what_its_session_has_computed(tmp_path: Path) -> None:
    trace = read(tmp_path, session(call(0, [1, 2]), subagent(5, call(5, [1, 2, 3]))), session(call(9, [1, 2])))
    workload = Workload("sessions", trace.requests, TokenBook(trace.requests, 64))
    outcome = Replay(workload, shape(blocks_primary=64, iteration_ms=20)).run()
    assert outcome.tokens.primary == 128


@pytest.mark.parametrize("several", [False, True])
def test_sessions_may_be_a_document_over_many_lines(tmp_path: Path, several: bool) -> None:
    sessions = [session(call(0, [1]), call(9, [1, 2])), session(call(1, [1]))]
    path = tmp_path / "trace_0001.json"
    path.write_text(json.dumps(sessions if several else sessions[0], indent=2))
    read_at_once = read_trace(path, tokens_per_hash_id=64)
    as_lines = read(tmp_path, *(sessions if several else sessions[:1]))
    assert (times(read_at_once), ids(read_at_once)) == (times(as_lines), ids(as_lines))
