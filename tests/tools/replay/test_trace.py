"""Reading traces: both formats, and what is said about a line that is neither."""

import gzip
import io
import json
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtllm_kvfix.tools.replay import source
from trtllm_kvfix.tools.replay import trace as trace_module
from trtllm_kvfix.tools.replay.trace import TraceError, read_trace

from .shapes import TINY

EXPECTED = "expected a JSON object with input_length, output_length and hash_ids, or with tokens"
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
        ("{", f"EOF while parsing an object at column 1; {EXPECTED}"),
        ("[1, 2]", f"a request is a JSON object, this is a list; {EXPECTED}"),
        ('{"output_length": 2, "hash_ids": [3]}', f"input_length: Field required; {EXPECTED}"),
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
        (
            '{"input_length": 5, "output_length": 2147483648, "hash_ids": [3]}',
            "output_length: Input should be less than 2147483648",
        ),
        (
            '{"input_length": 2147483648, "output_length": 0, "hash_ids": []}',
            "input_length: Input should be less than 2147483648",
        ),
        (
            '{"lora_id": 9223372036854775808, "tokens": [1], "output_length": 1}',
            "lora_id: Input should be less than 9223372036854775808",
        ),
        (
            '{"salt": 9223372036854775808, "tokens": [1], "output_length": 1}',
            "salt: a number has 64 bits with its sign (9223372036854775808)",
        ),
        ('{"tokens": [1], "output_length": 9223372036854775808}', "output_length: Input should be less than"),
        ('{"tokens": [], "output_length": 1}', "tokens: List should have at least 1 item"),
        ('{"tokens": [2147483648], "output_length": 1}', "tokens.0: Input should be less than 2147483648"),
        ('{"tokens": [1]}', "output_length or output_tokens is needed, but both are missing"),
        ('{"tokens": [1], "output_length": 3, "output_tokens": [1]}', "output_length is 3, output_tokens has 1"),
    ],
)
def test_a_bad_line_refuses_the_trace_with_its_number_and_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = trace_file(tmp_path, GOOD, line, GOOD)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path} line 2: {reason}")
    assert str(caught.value).endswith("`replay --skip-bad` leaves such lines out")
    assert caught.value.exit_code == 2


def test_skip_bad_leaves_bad_lines_out_and_remembers_them(tmp_path: Path) -> None:
    trace = read_trace(trace_file(tmp_path, "}", GOOD, '{"tokens": [1]}'), skip_bad=True)
    assert [request.line for request in trace.requests] == [2]
    assert [bad.line for bad in trace.lines_bad] == [1, 3]
    assert "both are missing" in trace.lines_bad[1].reason


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [([""], ""), (["}"], r" \(1 bad line was left out\)"), (["}", "", "}"], r" \(2 bad lines were left out\)")],
)
def test_a_trace_without_requests_is_refused(tmp_path: Path, lines: list[str], left_out: str) -> None:
    with pytest.raises(TraceError, match=f"holds no request{left_out}$"):
        read_trace(trace_file(tmp_path, *lines), skip_bad=True)


def test_a_file_that_is_not_there_is_an_error_of_usage(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"missing\.jsonl cannot be read: No such file") as caught:
        read_trace(tmp_path / "missing.jsonl")
    assert caught.value.exit_code == 2


def lines_read(path: Path) -> list[int]:
    return [request.line for request in read_trace(path).requests]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("name", "packed"), [("t.jsonl", False), ("t.jsonl.gz", True), ("t", True), ("-", False), ("-", True)]
)
def test_a_trace_may_be_packed_piped_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, packed: bool, mark: bytes
) -> None:
    data = mark + TINY.read_bytes()
    data = gzip.compress(data) if packed else data
    if name == "-":
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))
    else:
        (tmp_path / name).write_bytes(data)
    path = Path("-") if name == "-" else tmp_path / name
    assert lines_read(path) == lines_read(TINY)


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (
            gzip.compress((GOOD + "\n").encode() * 3, mtime=0)[:-12],
            "line [1-4]: the gzip file is broken .*ended before",
        ),
        (gzip.compress(b"x" * 100, mtime=0)[:20] + b"\xff" * 20, "line 1: the gzip file is broken"),
        (GOOD.encode(), "line 1: the gzip file is broken .*Not a gzipped file"),
        (b"", "holds no request"),
    ],
)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_broken_gzip_file_is_refused_even_where_bad_lines_are_left_out(
    tmp_path: Path, packed: bytes, reason: str, skip_bad: bool
) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match=reason) as caught:
        read_trace(path, skip_bad=skip_bad)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_line_that_no_memory_holds_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip_bad: bool
) -> None:
    monkeypatch.setattr(source, "LINE_BYTES_MAX", 100)
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(f"{GOOD}\n".encode() + b" " * 100_000_000))
    tracemalloc.start()
    with pytest.raises(TraceError, match=r"trace\.gz line 2 has more than 100 bytes; expected one request a line"):
        read_trace(path, skip_bad=skip_bad)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_bad_line_of_a_packed_trace_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(f"{GOOD}\n\n[]\n".encode()))
    with pytest.raises(TraceError, match=r"trace\.gz line 3: a request is a JSON object"):
        read_trace(path)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_may_be_an_array_of_requests_over_any_lines(tmp_path: Path, indent: int | None) -> None:
    requests = [json.loads(GOOD), {"tokens": [1, 2], "output_length": 3}]
    read = read_trace(trace_file(tmp_path, json.dumps(requests, indent=indent))).requests
    assert [(one.line, one.output_length) for one in read] == [(1, requests[0]["output_length"]), (2, 3)]


def test_a_document_may_be_one_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(json.loads(GOOD), indent=1).encode()))
    assert len(read_trace(path).requests) == 1


def test_a_bad_element_of_an_array_is_named_by_its_number_and_may_be_left_out(tmp_path: Path) -> None:
    path = trace_file(tmp_path, json.dumps([json.loads(GOOD), 5, {"tokens": []}], indent=1))
    with pytest.raises(TraceError, match="element 2: a request is a JSON object, this is a int") as caught:
        read_trace(path)
    assert str(caught.value).endswith("`replay --skip-bad` leaves such elements out")
    assert [bad.line for bad in read_trace(path, skip_bad=True).lines_bad] == [2, 3]


@pytest.mark.parametrize("text", ["{\n1}", "[{}", f"{{\n}}\n{GOOD}"])
def test_a_document_that_cannot_be_read_says_how_to_write_lines(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match=r"cannot be read: .* line .*; expected .* `jq -c \.`"):
        read_trace(trace_file(tmp_path, text), skip_bad=True)


def test_a_document_that_no_memory_holds_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "DOCUMENT_BYTES_MAX", 1000)
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(b"[\n" + b" \n5,\n" * 10_000_000))
    tracemalloc.start()
    with pytest.raises(TraceError, match=r"more than 1,000 bytes; expected .* `jq -c \.`"):
        read_trace(path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
