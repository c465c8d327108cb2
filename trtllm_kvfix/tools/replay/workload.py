"""Generated workloads, each with the cache that it is meant for. The same seed gives the same tokens everywhere."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.tools.replay.engine import Workload
from trtllm_kvfix.tools.replay.outcome import CacheShape
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TraceRequest

VOCABULARY = 100_000


class Generated(NamedTuple):
    workload: Workload
    shape: CacheShape


class _Speaker:
    """Random token sequences. PCG64 is spelled out because numpy may change its default generator."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.Generator(np.random.PCG64(seed))

    def say(self, tokens: int) -> NDArray[np.int32]:
        return self.random.integers(0, VOCABULARY, size=tokens, dtype=np.int32)

    def between(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))


def generate(name: str, seed: int) -> Generated:
    requests, shape = GENERATORS[name](_Speaker(seed))
    return Generated(Workload(f"generated {name}, seed {seed}", requests, TokenBook(requests)), shape)


def _small(speaker: _Speaker) -> tuple[list[TraceRequest], CacheShape]:
    """Bursts of an unrelated prompt followed by questions about documents, in a cache that just holds the documents.

    A scheduler that estimates first and adds one by one is caught out here: the unrelated prompt that it adds first
    evicts the documents, used longest ago, that the next requests were estimated to reuse.
    """
    documents = [speaker.say(512) for _ in range(8)]
    requests: list[TraceRequest] = []

    def ask(prompt: NDArray[np.int32], at_ms: float) -> None:
        answer_length = speaker.between(4, 24)
        requests.append(TraceRequest(len(requests) + 1, len(prompt), answer_length, at_ms, tokens=prompt))

    for burst in range(40):
        at_ms = burst * 1000.0
        ask(speaker.say(speaker.between(300, 600)), at_ms)
        for question in range(4):
            document = documents[(4 * burst + question) % len(documents)]
            ask(np.concatenate([document, speaker.say(speaker.between(16, 64))]), at_ms)
    shape = CacheShape(
        tokens_per_block=32,
        blocks_primary=168,
        blocks_host=64,
        bytes_per_block=None,
        max_batch_size=8,
        max_num_tokens=1024,
        tokens_per_iteration=1,
        iteration_ms=20,
    )
    return requests, shape


def _chat(speaker: _Speaker) -> tuple[list[TraceRequest], CacheShape]:
    """Conversations of several turns; each prompt repeats its conversation so far, answers included."""
    system_prompts = [speaker.say(768) for _ in range(4)]
    conversations = [system_prompts[speaker.between(0, 3)] for _ in range(96)]
    turns_left = [speaker.between(2, 10) for _ in conversations]
    requests: list[TraceRequest] = []
    while any(turns_left):
        talking = [number for number, turns in enumerate(turns_left) if turns]
        number = talking[speaker.between(0, len(talking) - 1)]
        prompt = np.concatenate([conversations[number], speaker.say(speaker.between(32, 320))])
        answer = speaker.say(speaker.between(16, 256))
        requests.append(TraceRequest(len(requests) + 1, len(prompt), len(answer), tokens=prompt, output_tokens=answer))
        conversations[number] = np.concatenate([prompt, answer])
        turns_left[number] -= 1
    shape = CacheShape(
        tokens_per_block=32,
        blocks_primary=1536,
        blocks_host=2048,
        bytes_per_block=None,
        max_batch_size=16,
        max_num_tokens=4096,
        tokens_per_iteration=1,
        iteration_ms=0,
    )
    return requests, shape


GENERATORS: dict[str, Callable[[_Speaker], tuple[list[TraceRequest], CacheShape]]] = {"small": _small, "chat": _chat}
