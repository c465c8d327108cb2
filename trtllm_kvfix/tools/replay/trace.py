"""Reading a trace: JSON lines, each one request, either as hash ids or as its tokens, or a session of many requests. Or
one JSON document over many lines: such an object, or an array of them.

A recording of a server (`kvfix.record`) is a trace of hash ids. At the head of each start, a line says how many tokens
an id stands for.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from trtllm_kvfix.plurals import form, number_of
from trtllm_kvfix.recording import FORMAT, HEAD, tokens_computed
from trtllm_kvfix.tools.replay.sessions import LENGTH_END, calls_of, is_session
from trtllm_kvfix.tools.replay.source import TraceError, lines_of, name_of

__all__ = [
    "TOKENS_PER_HASH_ID",
    "TOKENS_PER_HASH_ID_MAX",
    "BadLine",
    "Trace",
    "TraceError",
    "TraceRequest",
    "parse_lines",
    "read_trace",
]

TOKENS_PER_HASH_ID = 512
TOKENS_PER_HASH_ID_MAX = 1 << 20  # no prompt is longer; a pattern of so many is kept
DOCUMENT_BYTES_MAX = 1 << 30
_WAYS = (
    "expected one JSON object or array, or one request a line, as `jq -c .` writes them (and `jq -c '.[]'` those of an "
    "array)"
)
_EXPECTED = "expected a JSON object with input_length, output_length and hash_ids, or with tokens"

Token = Annotated[int, Field(ge=0, lt=2**31)]
HashId = Annotated[int, Field(ge=0, lt=2**63)]


class TraceRequest(NamedTuple):
    """One request. Exactly one of `hash_ids` and `tokens` says what its prompt is."""

    line: int
    input_length: int
    output_length: int
    timestamp_ms: float = 0.0
    hash_ids: NDArray[np.int64] | None = None
    tokens: NDArray[np.int32] | None = None
    output_tokens: NDArray[np.int32] | None = None
    lora_id: int | None = None
    salt: str | int | None = None
    output_hash_ids: NDArray[np.int64] | None = None  # of the parts behind those of the prompt

    @property
    def computed(self) -> int:
        """Tokens of prompt and answer of which there is something to find later."""
        return tokens_computed(self.input_length, self.output_length)


class BadLine(NamedTuple):
    line: int
    reason: str


class Trace(NamedTuple):
    requests: list[TraceRequest]
    lines_bad: list[BadLine]  # left out because the caller asked for that
    tokens_per_hash_id: int


class _Line(BaseModel):
    # Traces carry fields of their own (chat ids, user ids); those are not ours to refuse.
    model_config = ConfigDict(extra="ignore", strict=True)

    timestamp: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    lora_id: int | None = Field(default=None, ge=0, lt=2**63)
    salt: str | int | None = None

    @field_validator("salt")
    @classmethod
    def _of_64_bits(cls, salt: str | int | None) -> str | int | None:
        if isinstance(salt, int) and not -(2**63) <= salt < 2**63:
            raise ValueError("a number has 64 bits with its sign")
        return salt


class _HashedLine(_Line):
    input_length: int = Field(ge=1, lt=LENGTH_END)
    output_length: int = Field(ge=0, lt=LENGTH_END)
    hash_ids: list[HashId]
    output_hash_ids: list[HashId] | None = None


class _Head(BaseModel):
    """The first line of a recording, and of each later start that was recorded in the same file."""

    model_config = ConfigDict(extra="ignore", strict=True)

    format_number: int = Field(alias=HEAD)
    tokens_per_block: int = Field(ge=1, le=TOKENS_PER_HASH_ID_MAX)

    @field_validator("format_number")
    @classmethod
    def _known(cls, number: int) -> int:
        if number != FORMAT:
            raise ValueError(f"this release reads format {FORMAT}")
        return number


class _TokenLine(_Line):
    tokens: list[Token] = Field(min_length=1)
    output_length: int | None = Field(default=None, ge=0, lt=LENGTH_END)
    output_tokens: list[Token] | None = None

    @model_validator(mode="after")
    def _one_length(self) -> "_TokenLine":
        if self.output_tokens is None and self.output_length is None:
            raise ValueError("output_length or output_tokens is needed, but both are missing")
        if self.output_tokens is not None and self.output_length not in (None, len(self.output_tokens)):
            raise ValueError(f"output_length is {self.output_length}, output_tokens has {len(self.output_tokens)}")
        return self


def read_trace(path: Path, *, tokens_per_hash_id: int | None = None, skip_bad: bool = False) -> Trace:
    """Read every request of a file, or of standard input where `path` is `-`; either may be gzipped.

    The first bad line refuses the trace, unless `skip_bad` leaves bad lines out. Without `tokens_per_hash_id`, an id
    stands for as many tokens as a recording says, else for 512.
    """
    name = name_of(path)
    with lines_of(path) as lines:
        trace = parse_lines(lines, name, tokens_per_hash_id=tokens_per_hash_id, skip_bad=skip_bad)
    if not trace.requests:
        bad = len(trace.lines_bad)
        left_out = f" ({number_of(bad, 'bad line')} {form(bad, 'was', 'were')} left out)" if bad else ""
        raise TraceError(f"trace {name} holds no request{left_out}")
    return trace


def parse_lines(lines: Iterable[bytes], name: str, *, tokens_per_hash_id: int | None, skip_bad: bool) -> Trace:
    reader = _Reader(tokens_per_hash_id)
    bad: list[BadLine] = []
    for entry in _entries(lines, name):
        try:
            reader.read(entry.parsed(), entry.number)
        except ValueError as error:
            reason = _first_problem(error)
            if not skip_bad:
                raise TraceError(
                    f"{name} {entry.kind} {entry.number}: {reason}; `replay --skip-bad` leaves such {entry.kind}s out"
                ) from error
            bad.append(BadLine(entry.number, reason))
    return Trace(reader.in_order(), bad, reader.tokens_per_hash_id)


class _TraceEntry(NamedTuple):
    """A line, or an element of a document that is an array."""

    kind: str
    number: int
    parsed: Callable[[], object]  # raises ValueError


def _entries(lines: Iterable[bytes], name: str) -> Iterator[_TraceEntry]:
    numbered = ((number, text) for number, text in enumerate(lines, start=1) if text.strip())
    is_first = True
    for number, text in numbered:
        if is_first and _begins_document(text):
            document = _document(chain((text,), (more for _, more in numbered)), name)
            elements = document if isinstance(document, list) else [document]
            yield from (
                _TraceEntry("element", at + 1, partial(elements.__getitem__, at)) for at in range(len(elements))
            )
            return
        is_first = False
        yield _TraceEntry("line", number, partial(_json_of, text))


def _begins_document(text: bytes) -> bool:
    """No request fits such a line."""
    return text.strip() == b"{" or text.lstrip().startswith(b"[")


def _document(lines: Iterable[bytes], name: str) -> object:
    text = bytearray()
    for line in lines:
        text += line
        if len(text) > DOCUMENT_BYTES_MAX:
            raise TraceError(f"trace {name} is a JSON document of more than {DOCUMENT_BYTES_MAX:,} bytes; {_WAYS}")
    try:
        found: object = from_json(bytes(text))
    except ValueError as error:
        raise TraceError(f"trace {name} begins as a JSON document, and cannot be read: {error}; {_WAYS}") from error
    return found


class _Reader:
    def __init__(self, tokens_per_hash_id: int | None) -> None:
        self.tokens_per_hash_id = tokens_per_hash_id or TOKENS_PER_HASH_ID
        self._is_given = tokens_per_hash_id is not None
        self._requests: list[TraceRequest] = []
        self._has_sessions = self._is_recording = False

    def in_order(self) -> list[TraceRequest]:
        """Sessions run beside one another, and a recording has its requests as they ended."""
        if self._has_sessions or self._is_recording:
            self._requests.sort(key=lambda request: request.timestamp_ms)
        if self._is_recording and self._requests:  # its clock began long ago
            first_ms = self._requests[0].timestamp_ms
            return [each._replace(timestamp_ms=each.timestamp_ms - first_ms) for each in self._requests]
        return self._requests

    def read(self, fields: object, number: int) -> None:
        if not isinstance(fields, dict):
            raise ValueError(f"a request is a JSON object, this is a {type(fields).__name__}; {_EXPECTED}")
        if HEAD in fields:
            self._begin_recording(_Head.model_validate(fields).tokens_per_block)
        elif is_session(fields):
            self._has_sessions = True
            self._requests += [
                TraceRequest(
                    number,
                    call.input_length,
                    call.output_length,
                    1000 * call.start_s,
                    np.array(call.hash_ids, np.int64),
                )
                for call in calls_of(fields, number, self.tokens_per_hash_id)
            ]
        elif "tokens" in fields:
            self._requests.append(_token_request(_TokenLine.model_validate(fields), number))
        else:
            self._requests.append(self._hashed_request(_HashedLine.model_validate(fields), number))

    def _begin_recording(self, tokens_per_block: int) -> None:
        if (self._is_given or self._requests) and tokens_per_block != self.tokens_per_hash_id:
            raise ValueError(
                f"an id of this recording stands for {tokens_per_block} tokens, and of those before for "
                f"{self.tokens_per_hash_id} (see --tokens-per-hash-id)"
            )
        self._is_recording, self.tokens_per_hash_id = True, tokens_per_block

    def _hashed_request(self, line: _HashedLine, number: int) -> TraceRequest:
        answer = line.output_hash_ids
        request = TraceRequest(
            number,
            line.input_length,
            line.output_length,
            line.timestamp,
            hash_ids=np.array(line.hash_ids, dtype=np.int64),
            lora_id=line.lora_id,
            salt=line.salt,
            output_hash_ids=None if answer is None else np.array(answer, dtype=np.int64),
        )
        self._check_count("hash_ids", line.hash_ids, "input_length", line.input_length, 0)
        if answer is not None:
            self._check_count("output_hash_ids", answer, "prompt and answer of", request.computed, len(line.hash_ids))
        return request

    def _check_count(self, name: str, ids: list[int], what: str, tokens: int, before: int) -> None:
        needed = -(-tokens // self.tokens_per_hash_id) - before
        if len(ids) != needed:
            raise ValueError(
                f"{name} has {len(ids)} ids, {what} {tokens} needs {needed}"
                f" at {self.tokens_per_hash_id} tokens an id (see --tokens-per-hash-id)"
            )


def _json_of(text: bytes) -> object:
    try:
        return from_json(text.rstrip())
    except ValueError as error:
        # The parser knows this line alone and calls it the first.
        raise ValueError(f"{str(error).replace(' line 1 ', ' ')}; {_EXPECTED}") from error


def _token_request(line: _TokenLine, number: int) -> TraceRequest:
    tokens = np.array(line.tokens, dtype=np.int32)
    answer = None if line.output_tokens is None else np.array(line.output_tokens, dtype=np.int32)
    length = line.output_length if answer is None else len(answer)
    assert length is not None, "_one_length let a line without any length through"
    return TraceRequest(number, len(tokens), length, line.timestamp, None, tokens, answer, line.lora_id, line.salt)


def _first_problem(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if not where:
        return message
    shown = f"; {_EXPECTED}" if problem["type"] == "missing" else f" ({problem['input']!r:.40})"
    return f"{where}: {message}{shown}"
