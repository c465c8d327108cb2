"""Reading traces: both formats, and what is said about a line that is neither."""

import json
from pathlib import Path

import pytest

from trtllm_kvfix.tools.replay.trace import TraceError, read_trace

from .shapes import TINY

GOOD = '{"input_length": 5, "output_length": 2, "hash_ids": [3]}'


def trace_file(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_both_formats_are_read_from_one_file() -> None:
    trace = read_trace(TINY)
    assert trace.lines_bad == []
    assert [request.line for request in trace.requests] == [1, 2, 4, 5, 6, 7]
    assert [request.input_length for request in trace.requests] == [1024, 900, 1024, 40, 55, 1024]
    assert [request.output_length for request in trace.requests] == [3, 1, 2, 10, 1, 1]
    assert [request.timestamp_ms for request in trace.requests] == [0, 40, 90, 90, 2000, 2000]
    assert [request.salt for request in trace.requests] == [None] * 5 + ["a tenant"]
    by_tokens = trace.requests[3]
    assert by_tokens.hash_ids is None
    assert by_tokens.output_tokens is not None
    assert by_tokens.output_tokens.tolist() == list(range(50, 60))


def test_hash_ids_may_be_any_63_bit_numbers(tmp_path: Path) -> None:
    line = json.dumps({"input_length": 1024, "output_length": 0, "hash_ids": [2**63 - 1, 0]})
    assert read_trace(trace_file(tmp_path, line)).requests[0].input_length == 1024


def test_tokens_per_hash_id_decides_how_many_ids_are_needed(tmp_path: Path) -> None:
    path = trace_file(tmp_path, '{"input_length": 33, "output_length": 0, "hash_ids": [1, 2, 3]}')
    assert len(read_trace(path, tokens_per_hash_id=16).requests) == 1
    with pytest.raises(TraceError, match=r"hash_ids has 3 ids, input_length 33 needs 1 at 512 tokens an id"):
        read_trace(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "EOF while parsing"),
        ("[1, 2]", "a request is a JSON object, this is a list"),
        ('{"output_length": 2, "hash_ids": [3]}', "input_length: Field required"),
        (
            '{"input_length": 0, "output_length": 2, "hash_ids": []}',
            "input_length: Input should be greater than or equal to 1",
        ),
        (
            '{"input_length": "5", "output_length": 2, "hash_ids": [3]}',
            "input_length: Input should be a valid integer ('5')",
        ),
        ('{"input_length": 5, "output_length": -1, "hash_ids": [3]}', "output_length: Input should be greater than"),
        ('{"input_length": 513, "output_length": 1, "hash_ids": [3]}', "hash_ids has 1 ids, input_length 513 needs 2"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": [-3]}', "hash_ids.0: Input should be greater than"),
        (
            '{"input_length": 5, "output_length": 1, "hash_ids": [9223372036854775808]}',
            "hash_ids.0: Input should be less",
        ),
        (
            '{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [3]}',
            "timestamp: Input should be greater",
        ),
        ('{"tokens": [], "output_length": 1}', "tokens: List should have at least 1 item"),
        ('{"tokens": [2147483648], "output_length": 1}', "tokens.0: Input should be less than 2147483648"),
        ('{"tokens": [1]}', "output_length or output_tokens is needed, neither is there"),
        ('{"tokens": [1], "output_length": 3, "output_tokens": [1]}', "output_length is 3, output_tokens has 1"),
    ],
)
def test_a_bad_line_refuses_the_trace_with_its_number_and_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = trace_file(tmp_path, GOOD, line, GOOD)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path} line 2: {reason}")
    assert str(caught.value).endswith("--skip-bad leaves such lines out")
    assert caught.value.exit_code == 2


def test_skip_bad_leaves_bad_lines_out_and_remembers_them(tmp_path: Path) -> None:
    trace = read_trace(trace_file(tmp_path, "{", GOOD, '{"tokens": [1]}'), skip_bad=True)
    assert [request.line for request in trace.requests] == [2]
    assert [bad.line for bad in trace.lines_bad] == [1, 3]
    assert "neither is there" in trace.lines_bad[1].reason


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no request \(2 bad lines were left out\)"):
        read_trace(trace_file(tmp_path, "{", "", "{"), skip_bad=True)


def test_a_file_that_is_not_there_is_an_error_of_usage(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"missing\.jsonl cannot be read: No such file") as caught:
        read_trace(tmp_path / "missing.jsonl")
    assert caught.value.exit_code == 2
