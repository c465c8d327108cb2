"""Agentic sessions, as the Weka and AgentX traces have them: a line is a conversation, with those of its subagents.

Each request comes at its recorded time from the beginning of its session, however long the others take. Sessions begin
together. The times of a subagent's requests count from the beginning of the session in some traces, and from the
subagent's own in others. They count from its own if the first would otherwise begin before the subagent does.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

LENGTH_END = 2**31  # a sequence has fewer tokens
LOCAL_BITS = 40  # of a hash id that means something in its session alone; 22 are left for the session's line
FRESH = 1 << 62  # ids from here on are of parts of prompts that have none

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Call(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["n", "s"]  # answered at once, or streamed
    t: Seconds
    length: int = Field(alias="in", ge=1, lt=LENGTH_END)
    out: int = Field(ge=0, lt=LENGTH_END)
    hash_ids: list[Annotated[int, Field(ge=0, lt=1 << LOCAL_BITS)]]


class Subagent(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["subagent"]
    t: Seconds
    requests: list[Annotated["Call | Subagent", Field(discriminator="type")]]


class AgentSession(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    block_size: int = Field(ge=1)
    hash_id_scope: Literal["local", "global"] = "local"
    requests: list[Annotated[Call | Subagent, Field(discriminator="type")]]


class Timed(NamedTuple):
    start_s: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def is_session(fields: dict[str, Any]) -> bool:
    return "requests" in fields


def calls_of(fields: dict[str, Any], number: int, tokens_per_hash_id: int) -> list[Timed]:
    """The calls of session `number`, of all its agents, by their times."""
    session = AgentSession.model_validate(fields)
    if session.block_size != tokens_per_hash_id:
        raise ValueError(
            f"block_size is {session.block_size}, and --tokens-per-hash-id {tokens_per_hash_id}: give the same"
        )
    scope = number << LOCAL_BITS if session.hash_id_scope == "local" else 0
    timed = sorted(_timed(session.requests, 0.0), key=lambda one: one[0])
    return [
        Timed(
            start_s,
            call.length,
            call.out,
            _ids(call, scope, tokens_per_hash_id, FRESH | number << LOCAL_BITS | at << 20),
        )
        for at, (start_s, call) in enumerate(timed)
    ]


def _timed(requests: list[Call | Subagent], after_s: float) -> Iterator[tuple[float, Call]]:
    for request in requests:
        if isinstance(request, Call):
            yield after_s + request.t, request
            continue
        begin_s = after_s + request.t
        first_s = min((each.t for each in request.requests), default=0.0)
        yield from _timed(request.requests, begin_s if after_s + first_s < begin_s else after_s)


def _ids(call: Call, scope: int, tokens_per_hash_id: int, fresh: int) -> list[int]:
    """An id for each part of the prompt. Traces may leave out the last parts, which nothing else has then."""
    needed = -(-call.length // tokens_per_hash_id)
    known = [scope + each for each in call.hash_ids[:needed]]
    return known + [fresh + at for at in range(needed - len(known))]
