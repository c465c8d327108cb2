"""The benchmark workloads: deterministic token streams that any KV-cache manager can be driven with.

A workload is a list of waves. The requests of a wave are admitted together, generate one token each per step, and are
finished together. Run as a program, this prints a digest of each stream; `EXPECTED` holds what it must be, so that
numbers from different machines, versions and managers are known to come from the same tokens.

W1   2,000 requests of 2,048 tokens, one after another, nothing shared; the pool holds everything
W2   2,000 requests: one of 8 system prompts of 4,096 tokens and 512 tokens of their own; pool 60 % of the working set
W3   200 conversations of 10 turns, each +256 prompt and +128 generated tokens; 20 conversations at a time; pool 60 %
W4   20 batches of 64 requests of 8,192 tokens, of which 6,144 are cached (64 prefixes); pool 125 % of one batch
W4s  W4 with one prefix for all 64
W5   W3's tokens with two tiers: primary 25 % and host 100 % of the working set
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

SEED = 20_261_121
TOKEN_MIN, TOKEN_END = 1000, 128_000
POOL_ROUNDING = 64  # pools are whole blocks at every block size up to this

EXPECTED = {
    "W1": "30faed810af65f95",
    "W2": "a6a53eb7c62a2a36",
    "W3": "98e9b41eb74dccf1",
    "W4": "642a38d7475b50df",
    "W4s": "b426812fe096e023",
    "W5": "98e9b41eb74dccf1",
}


class Wave(NamedTuple):
    prompts: list[Tokens]
    answers: Tokens  # [request, step]
    timed: bool = True


class Workload(NamedTuple):
    name: str
    waves: list[Wave]
    tokens_primary: int
    tokens_host: int = 0

    @property
    def requests_timed(self) -> int:
        return sum(len(wave.prompts) for wave in self.waves if wave.timed)

    @property
    def tokens_generated(self) -> int:
        return sum(wave.answers.size for wave in self.waves)

    @property
    def steps(self) -> int:
        return sum(wave.answers.shape[1] for wave in self.waves)

    def flattened(self) -> Tokens:
        """For each wave: requests, steps, timed; each prompt's length and tokens; the answers row by row."""
        parts: list[Tokens] = []
        for wave in self.waves:
            parts.append(np.array([len(wave.prompts), wave.answers.shape[1], wave.timed], np.int32))
            for prompt in wave.prompts:
                parts.append(np.array([len(prompt)], np.int32))
                parts.append(prompt)
            parts.append(wave.answers.reshape(-1))
        return np.concatenate(parts)

    def digest(self) -> str:
        return hashlib.sha256(self.flattened().tobytes()).hexdigest()[:16]


def build(name: str) -> Workload:
    """Build a workload and make sure that it is the one that its name promises."""
    workload = BUILDERS[name]()
    if workload.digest() != EXPECTED[name]:
        raise RuntimeError(f"{name} has digest {workload.digest()}, not {EXPECTED[name]}: numpy changed its generator")
    return workload


def growth(sequences: int, prompt: int = 64, steps: int = 512) -> Workload:
    """`sequences` short prompts that then generate together; for the cost of one generated token."""
    speaker = _Speaker(f"growth{sequences}")
    wave = Wave([speaker.say(prompt) for _ in range(sequences)], speaker.table(sequences, steps))
    return Workload(f"G{sequences}", [wave], _rounded(2 * sequences * (prompt + steps)))


class _Speaker:
    """One random stream; drawing order is part of a workload's definition."""

    def __init__(self, tag: str) -> None:
        self.random = np.random.Generator(np.random.PCG64([SEED, *map(ord, tag)]))

    def say(self, tokens: int) -> Tokens:
        return self.random.integers(TOKEN_MIN, TOKEN_END, size=tokens, dtype=np.int32)

    def table(self, rows: int, columns: int) -> Tokens:
        return np.stack([self.say(columns) for _ in range(rows)])


def _rounded(tokens: int) -> int:
    return -(-tokens // POOL_ROUNDING) * POOL_ROUNDING


def _without_answers(prompts: Sequence[Tokens], *, timed: bool = True) -> Wave:
    return Wave(list(prompts), np.zeros((len(prompts), 0), np.int32), timed)


def _cold() -> Workload:
    requests, length = 2000, 2048
    speaker = _Speaker("w1")
    waves = [_without_answers([speaker.say(length)]) for _ in range(requests)]
    return Workload("W1", waves, _rounded((requests + 4) * length))


def _shared_prefix() -> Workload:
    requests, systems, system_length, own_length = 2000, 8, 4096, 512
    speaker = _Speaker("w2")
    prompts = [speaker.say(system_length) for _ in range(systems)]
    chosen = speaker.random.integers(0, systems, size=requests)
    waves = [_without_answers([np.concatenate([prompts[number], speaker.say(own_length)])]) for number in chosen]
    working_set = systems * system_length + requests * own_length
    return Workload("W2", waves, _rounded(int(working_set * 0.60)))


def _chat() -> Workload:
    conversations, turns, prompt_length, answer_length, width = 200, 10, 256, 128, 20
    speaker = _Speaker("w3")
    said = [np.zeros(0, np.int32)] * conversations
    turns_left = np.full(conversations, turns)
    waves = []
    while turns_left.any():
        prompts, answers = [], []
        for number in speaker.random.permutation(np.flatnonzero(turns_left))[:width]:
            prompts.append(np.concatenate([said[number], speaker.say(prompt_length)]))
            answers.append(speaker.say(answer_length))
            said[number] = np.concatenate([prompts[-1], answers[-1]])
            turns_left[number] -= 1
        waves.append(Wave(prompts, np.stack(answers)))
    working_set = conversations * turns * (prompt_length + answer_length)
    return Workload("W3", waves, _rounded(int(working_set * 0.60)))


def _chat_two_tiers() -> Workload:
    chat = _chat()
    working_set = int(chat.tokens_primary / 0.60)
    return Workload("W5", chat.waves, int(working_set * 0.25), working_set)


def _large_batches(*, shared: bool) -> Workload:
    batches, width, length = 20, 64, 8192
    cached = length * 3 // 4
    speaker = _Speaker("w4s" if shared else "w4")
    prefixes = [speaker.say(cached) for _ in range(1 if shared else width)]
    # The first wave puts the prefixes into the cache, with some tokens after them: the last token is never reused.
    waves = [_without_answers([np.concatenate([prefix, speaker.say(64)]) for prefix in prefixes], timed=False)]
    for _ in range(batches):
        tails = [speaker.say(length - cached) for _ in range(width)]
        waves.append(
            _without_answers([np.concatenate([prefixes[row % len(prefixes)], tail]) for row, tail in enumerate(tails)])
        )
    working_set = len(prefixes) * cached + width * (length - cached)
    return Workload("W4s" if shared else "W4", waves, _rounded(int(working_set * 1.25)))


BUILDERS: dict[str, Callable[[], Workload]] = {
    "W1": _cold,
    "W2": _shared_prefix,
    "W3": _chat,
    "W4": lambda: _large_batches(shared=False),
    "W4s": lambda: _large_batches(shared=True),
    "W5": _chat_two_tiers,
}

if __name__ == "__main__":
    for workload_name, builder in BUILDERS.items():
        made = builder()
        print(f"{workload_name:4} {made.digest()} {made.requests_timed} requests, pool of {made.tokens_primary} tokens")
