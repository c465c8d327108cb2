"""The ways to run the engine, and one run of each over the same arrivals.

The model has random weights: its answers make no sense, but every wrong key or value changes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

import numpy as np

from trtllm_kvfix.canary.canary import BLOCKS_PER_STEP, OBSERVES, Canary
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.loop import Engine
from trtllm_kvfix.engine.machine import open_machine
from trtllm_kvfix.engine.model import Array, Layer, Model, rotary
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.tools.bench.arrivals import Arrival
from trtllm_kvfix.tools.bench.report import WayOutcome

SHARP = 3.0  # how much more than usual attention distinguishes tokens: an answer depends on tokens far back
RANK = 4  # of an adapter


def random_model(
    seed: int,
    *,
    positions: int,
    vocabulary: int = 256,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    adapters: int = 3,
) -> Model:
    random = np.random.Generator(np.random.PCG64(seed))

    def weights(*shape: int, scale: float = 1.0) -> Array:
        drawn = random.standard_normal(shape, np.float32)
        return (drawn * (scale / shape[-2] ** 0.5)).astype(np.float32)

    def layer() -> Layer:
        return Layer(
            query=weights(width, heads * head_size, scale=SHARP),
            key=weights(width, kv_heads * head_size),
            value=weights(width, kv_heads * head_size),
            out=weights(heads * head_size, width, scale=SHARP),
            rotary=True,
            up=weights(width, 2 * width),
            down=weights(2 * width, width),
        )

    adapters_in, adapters_out = weights(adapters, width, RANK), weights(adapters, RANK, width, scale=RANK)
    adapters_in[0] = 0  # none
    cosines, sines = rotary(positions, head_size)
    return Model(
        embedding=weights(vocabulary, width, scale=vocabulary**0.5),
        layers=tuple(layer() for _ in range(layers)),
        unembedding=weights(width, vocabulary),
        adapters_in=adapters_in,
        adapters_out=adapters_out,
        cosines=cosines,
        sines=sines,
        positions=None,
        kv_heads=kv_heads,
        head_size=head_size,
        normed=True,
    )


@dataclass(frozen=True)
class EngineWay:
    name: str
    config: EngineConfig


class SizedModel(NamedTuple):
    """A model, and the engine that suits it."""

    text: str
    model: Callable[[], Model]
    config: EngineConfig


VOCABULARY = 1024
SMALL = SizedModel(
    "2 layers of width 64",
    lambda: random_model(0, positions=512, vocabulary=VOCABULARY),
    EngineConfig(
        tokens_per_block=16, blocks_primary=160, blocks_host=512, requests_max=8, tokens_max=256, length_max=512
    ),
)
LARGE = SizedModel(
    "8 layers of width 512",
    lambda: random_model(
        0, positions=2048, vocabulary=VOCABULARY, width=512, layers=8, heads=8, kv_heads=2, head_size=64
    ),
    EngineConfig(
        tokens_per_block=32, blocks_primary=640, blocks_host=2048, requests_max=16, tokens_max=1024, length_max=2048
    ),
)
SIZES = {"small": SMALL, "large": LARGE}


def ways(base: EngineConfig, *, graphs: bool, canary: bool = False) -> list[EngineWay]:
    """graphs: the device has some, so that doing without them is another way. canary: a way with one is asked for."""
    v2, one_by_one = replace(base, layout="v2"), replace(base, manager="one-by-one")
    connector = replace(base, tier="connector")
    found = [
        EngineWay("all fixes", base),
        *([EngineWay("all fixes, a canary", replace(base, canary=BLOCKS_PER_STEP))] if canary else []),
        *(_without(base, fix) for fix in ("staged-offsets-v1", "input-copy-fence", "graph-inputs", "transfer-order")),
        EngineWay("V2 tables, all fixes", v2),
        _without(v2, "staged-offsets-v2", "V2 tables, "),
        EngineWay("requests one by one", one_by_one),
        _without(one_by_one, "computed-blocks", "one by one, "),
        EngineWay("the connector as host tier", connector),
        _without(connector, "transfer-order", "connector, "),
        EngineWay("no host tier", replace(base, blocks_host=0)),
        EngineWay("no overlap", replace(base, overlap=False)),
    ]
    return [*found, EngineWay("no CUDA graphs", replace(base, graphs=False))] if graphs else found


def _without(config: EngineConfig, fix: str, what: str = "") -> EngineWay:
    return EngineWay(f"{what}without {fix}", replace(config, off=frozenset((fix,))))


class WayFigures(NamedTuple):
    tokens_per_s: float
    first_ms: list[float]
    between_ms: list[float]
    reused: int
    computed: int
    lost: int
    preemptions: int


def execute(
    chosen: Sequence[EngineWay],
    model: Model,
    arrivals: Sequence[Arrival],
    device: str,
    repeats: int,
    on_run: Callable[[], object],
) -> list[WayOutcome]:
    """Run each way once, then each again, so that other load on the machine meets all of them."""
    runs: list[list[WayFigures]] = [[] for _ in chosen]
    for _ in range(repeats):
        for way, own in zip(chosen, runs, strict=True):
            own.append(run(way.config, model, arrivals, device))
            on_run()
    return [outcome(way, own) for way, own in zip(chosen, runs, strict=True)]


def run(config: EngineConfig, model: Model, arrivals: Sequence[Arrival], device: str) -> WayFigures:
    machine = open_machine(device)
    engine = Engine(machine, model, config)
    try:
        warm_up(engine, arrivals)
        before = engine.cache.core.get_kv_cache_stats().total.tokens_reused
        computed = engine.scheduler.counts.tokens_computed
        requests = play(engine, arrivals)
        reused = engine.cache.core.get_kv_cache_stats().total.tokens_reused - before
        refuse_what_was_not_watched(engine.cache.canary)
    finally:
        engine.close()
        machine.close()
    ends = [request.token_times_s[-1] for request in requests]
    return WayFigures(
        tokens_per_s=sum(len(request.answer) for request in requests) / (max(ends) - requests[0].arrival_s),
        first_ms=[1e3 * (request.token_times_s[0] - request.arrival_s) for request in requests],
        between_ms=[1e3 * float(gap) for request in requests for gap in np.diff(request.token_times_s)],
        reused=reused,
        computed=engine.scheduler.counts.tokens_computed - computed,
        lost=engine.scheduler.counts.reuse_lost,
        preemptions=engine.scheduler.counts.preemptions,
    )


def refuse_what_was_not_watched(canary: Canary | None) -> None:
    """A canary that has stood down costs nothing."""
    report = None if canary is None else canary.report()
    if report is not None and (report.state != OBSERVES or report.counts):
        raise KvfixError(f"the canary {report.state}, and found {report.counts}: this run does not show what it costs")


def warm_up(engine: Engine, arrivals: Sequence[Arrival]) -> None:
    """Warm up with requests that later ones never match."""
    engine.run([Request(len(arrivals), arrivals[0].prompt, arrivals[0].answer_tokens, salt=1)])


def play(engine: Engine, arrivals: Sequence[Arrival]) -> list[Request]:
    """Submit each request at its time, whether or not those before it are done."""
    start = perf_counter()
    requests = [
        Request(number, arrival.prompt, arrival.answer_tokens, arrival_s=start + arrival.at_s)
        for number, arrival in enumerate(arrivals)
    ]
    coming = requests[::-1]
    while coming or engine.busy:
        while coming and coming[-1].arrival_s <= perf_counter():
            engine.submit(coming.pop())
        if engine.busy:
            engine.step()
        else:
            sleep(max(0.0, coming[-1].arrival_s - perf_counter()))
    return requests


def outcome(way: EngineWay, runs: Sequence[WayFigures]) -> WayOutcome:
    config = way.config
    return WayOutcome(
        name=way.name,
        manager=config.manager,
        layout=config.layout,
        tier=config.tier if config.blocks_host else "none",
        host_blocks=config.blocks_host,
        off=sorted(config.off),
        tokens_per_s=median(one.tokens_per_s for one in runs),
        first_token_ms_median=median(median(one.first_ms) for one in runs),
        first_token_ms_p95=median(float(np.percentile(one.first_ms, 95)) for one in runs),
        token_ms_median=median(median(one.between_ms) for one in runs),
        tokens_reused=int(median(one.reused for one in runs)),
        tokens_computed=int(median(one.computed for one in runs)),
        reuse_lost=int(median(one.lost for one in runs)),
        preemptions=int(median(one.preemptions for one in runs)),
    )
