"""The generated workloads do what they are for."""

import numpy as np
import pytest

from trtllm_kvfix.tools.replay.command import GENERATORS, generate
from trtllm_kvfix.tools.replay.engine import Replay
from trtllm_kvfix.tools.replay.outcome import AdmissionKind


@pytest.mark.parametrize("seed", range(4))
def test_small_overshoots_one_by_one_and_never_in_a_batch(seed: int) -> None:
    made = generate("small", seed)
    one_by_one = Replay(made.workload, made.shape, AdmissionKind.ONE_BY_ONE).run().budget
    batch = Replay(made.workload, made.shape, AdmissionKind.BATCH).run().budget
    assert one_by_one.overshoots >= 5
    assert one_by_one.tokens_over_max > 100
    assert one_by_one.promises_broken >= one_by_one.overshoots
    assert (batch.overshoots, batch.tokens_over, batch.promises_broken, batch.tokens_short) == (0, 0, 0, 0)
    assert batch.promises == len(made.workload.requests)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_seed_names_a_workload(name: str) -> None:
    def prompts(seed: int) -> list[list[int]]:
        workload = generate(name, seed).workload
        return [workload.book.prompt(index).tolist() for index in range(len(workload.requests))]

    assert prompts(0) == prompts(0)
    assert prompts(0) != prompts(1)


def test_the_seed_means_the_same_everywhere() -> None:
    """Published numbers name a seed; numpy's bit streams are stable, and so must be what is drawn from them."""
    book = generate("small", seed=0).workload.book
    assert book.prompt(0)[:4].tolist() == [27802, 25693, 88233, 88958]


def test_a_chat_turn_begins_with_an_earlier_prompt_and_its_answer() -> None:
    workload = generate("chat", seed=0).workload
    answers = [request.output_tokens for request in workload.requests]
    said = [np.concatenate([workload.book.prompt(i), answer]) for i, answer in enumerate(answers) if answer is not None]
    repeats = sum(
        any(len(prompt) > len(before) and (prompt[: len(before)] == before).all() for before in said[:index])
        for index, prompt in enumerate(map(workload.book.prompt, range(len(said))))
    )
    assert repeats > len(said) / 2
