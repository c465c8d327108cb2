"""Prompts that went to the host tier come back whole."""

from .conftest import MakeBench
from .upstream_double import Request


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


def test_a_prompt_comes_back_from_the_host_tier(make_bench: MakeBench) -> None:
    bench = make_bench()
    executor = bench.executor
    executor.submit(*(Request(number, prompt(number), max_new_tokens=6) for number in range(1, 6)))
    executor.run()
    executor.forget_device_cache()
    executor.submit(*(Request(number + 10, prompt(number), max_new_tokens=6) for number in range(1, 6)))
    executor.run()
    assert executor.loaded_tokens == 5 * 20  # all whole blocks but the one with the last token
    assert executor.corrupt == []
    assert executor.reads_checked > 20
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0
