"""Counts wrong answers of many, with each fix off and with all on:

    python -m tests.engine.long_run --requests 10000 [--device cuda]

Prints one line for each engine and exits with 1 where one with all fixes is wrong, or one without a fix is right. With
`--canary 8` each has a canary, and one with all fixes whose canary speaks, or does not observe, fails as well.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import click

from tests.engine.load import TIGHT, Load, Played, with_fix, without
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig


def engines() -> Iterator[tuple[str, EngineConfig]]:
    """All fixes first: each engine that a control differs from in one fix."""
    connector = replace(TIGHT, tier="connector", late_every=1)
    fixed = {with_fix(TIGHT, fix) for fix in HAZARDS} | {connector}
    for config in sorted(fixed, key=lambda config: (config.tier, config.layout, config.manager)):
        yield f"{config.manager}, {config.layout} tables, {config.tier} tier", config
    for fix in HAZARDS:
        yield f"without {fix}", without(TIGHT, fix)
    yield "connector, without transfer-order", without(connector, "transfer-order")


@click.command()
@click.option("--requests", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--only", multiple=True, help="Engines whose name has this; repeatable.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--canary", type=click.IntRange(min=0), default=0, show_default=True, help="Blocks per step; 0: none.")
def main(requests: int, only: tuple[str, ...], device: str, canary: int) -> None:
    load = Load(requests)
    is_good = True
    for name, config in engines():
        if only and not any(each in name for each in only):
            continue
        start = perf_counter()
        played = Played(load, replace(config, canary=canary), device)
        is_good &= bool(played.wrong) == bool(config.off)
        seen = played.canary
        if seen is not None and not config.off:
            is_good &= seen.state == "observes" and not seen.counts
        click.echo(
            f"{name}: {len(played.wrong)} of {requests} wrong, {played.counts.preemptions} preemptions, "
            f"{played.blocks_loaded} loads, {played.stats.tokens_reused} tokens reused, {perf_counter() - start:.0f} s"
        )
        if seen is not None:
            compared = sum(seen.blocks_compared.values())
            click.echo(
                f"  canary {seen.state}: {seen.counts or 'no findings'}, {compared} blocks in {seen.steps} steps"
            )
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
