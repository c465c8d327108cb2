"""Requests and when they arrive: generated, or taken from a trace and cut down to what the engine's model can hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.tools.replay.trace import TraceRequest, read_trace

SYSTEM_PROMPTS = 4


@dataclass(frozen=True)
class Load:
    """What a generated load is for."""

    purpose: str
    conversations: int  # that go on at a time: their prompts fit the GPU's blocks, or they do not
    burst: int  # requests that arrive at the same moment


LOADS = {
    "pressure": Load("more conversations than the GPU's blocks hold", conversations=24, burst=1),
    "prefixes": Load("few conversations, over few system prompts", conversations=4, burst=1),
    "bursts": Load("eight requests at a time, of more conversations than fit", conversations=24, burst=8),
}


@dataclass(frozen=True)
class Arrival:
    at_s: float
    prompt: list[int]
    answer_tokens: int


@dataclass(frozen=True)
class Sizes:
    """Sizes that the model can hold."""

    vocabulary: int
    length_max: int

    @property
    def answer_max(self) -> int:
        return self.length_max // 8


def generated(load: Load, requests: int, rate: float, sizes: Sizes, seed: int) -> list[Arrival]:
    """Conversations over a few system prompts; each turn repeats the last one's prompt. Arrivals are random in time."""
    random = np.random.Generator(np.random.PCG64(seed))
    step = sizes.length_max // 16

    def draw(tokens: int) -> list[int]:
        drawn: list[int] = random.integers(0, sizes.vocabulary, tokens).tolist()
        return drawn

    systems = [draw(4 * step) for _ in range(SYSTEM_PROMPTS)]
    talking: list[list[int]] = []
    made: list[Arrival] = []
    at_s = 0.0
    while len(made) < requests:
        if len(talking) < load.conversations:
            talking.append(list(systems[int(random.integers(SYSTEM_PROMPTS))]))
            number = len(talking) - 1
        else:
            number = int(random.integers(len(talking)))
        talking[number] += draw(int(random.integers(step // 2, 2 * step)))
        if len(talking[number]) + sizes.answer_max > sizes.length_max:
            del talking[number]
            continue
        made.append(Arrival(at_s, list(talking[number]), int(random.integers(4, sizes.answer_max + 1))))
        if len(made) % load.burst == 0:
            at_s += float(random.exponential(load.burst / rate))
    return made


def from_trace(path: Path, requests: int, rate: float, sizes: Sizes) -> list[Arrival]:
    """The trace's order, its shared prefixes and its rhythm, at `rate` on average; lengths are cut to scale."""
    read = read_trace(path)
    trace = read.requests[:requests]
    longest = max(request.input_length + request.output_length for request in trace)
    scale = min(1.0, sizes.length_max / longest)
    span_ms = trace[-1].timestamp_ms - trace[0].timestamp_ms
    if span_ms < 0:
        raise SettingsError(f"trace {path}: its last request comes before its first; sort it by time")
    seconds_per_ms = len(trace) / rate / span_ms if span_ms else 0.0
    per_id = max(1, round(read.tokens_per_hash_id * scale))
    return [_scaled(request, scale, per_id, seconds_per_ms, trace[0].timestamp_ms, sizes) for request in trace]


def _scaled(
    request: TraceRequest, scale: float, per_id: int, seconds_per_ms: float, start_ms: float, sizes: Sizes
) -> Arrival:
    answer = min(max(1, int(request.output_length * scale)), sizes.answer_max)
    if request.tokens is not None:
        kept = request.tokens[: max(1, int(len(request.tokens) * scale))]
        prompt: list[int] = (kept % sizes.vocabulary).tolist()
    else:
        prompt = _spelled(request, scale, per_id, sizes)
    prompt = prompt[: sizes.length_max - answer]
    return Arrival((request.timestamp_ms - start_ms) * seconds_per_ms, prompt, answer)


def _spelled(request: TraceRequest, scale: float, per_id: int, sizes: Sizes) -> list[int]:
    """An id spells the same tokens wherever it stands."""
    ids: Sequence[int] = [] if request.hash_ids is None else request.hash_ids.tolist()
    words: list[NDArray[np.int64]] = [
        np.random.Generator(np.random.PCG64(each)).integers(0, sizes.vocabulary, per_id) for each in ids
    ]
    spelled: list[int] = np.concatenate(words).tolist()
    return spelled[: max(1, int(request.input_length * scale))]
