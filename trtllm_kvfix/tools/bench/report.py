"""What a run of `bench` found: the models that `--json` prints, a table with plain words, and a picture.

Nothing is counted here.
"""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trtllm_kvfix.plurals import number_of
from trtllm_kvfix.tools.json_model import JsonModel
from trtllm_kvfix.tools.pictures import save


class WayOutcome(JsonModel):
    """Medians over the runs of one way to run the engine."""

    name: str
    manager: str
    layout: str
    tier: str
    host_blocks: int
    off: list[str]
    tokens_per_s: float  # of answers
    first_token_ms_median: float
    first_token_ms_p95: float
    token_ms_median: float  # from one token of an answer to the next
    tokens_reused: int  # of prompts
    tokens_computed: int
    reuse_lost: int  # tokens that were promised to a prompt of a batch, and evicted before its turn
    preemptions: int


class BenchReport(JsonModel):
    """`bench --json`."""

    version: str
    device: str
    simulated: bool
    model: str
    load: str
    requests: int
    rate: float
    repeats: int
    arms: list[WayOutcome]


HEADINGS = ("tokens\n/s", "first\nms", "95 %\nms", "next\nms", "reused", "new", "lost")


def print_report(console: Console, report: BenchReport) -> None:
    console.print(
        f"{report.device}, {report.model}: {number_of(report.requests, 'request')}, {report.rate:g} a second "
        f"({report.load})",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in report.arms:
        table.add_row(f"  no {arm.off[0]}" if arm.off else arm.name, *cells(arm))
    console.print(table)
    for line in notes(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def cells(arm: WayOutcome) -> tuple[str, ...]:
    return (
        f"{arm.tokens_per_s:.0f}",
        f"{arm.first_token_ms_median:.0f}",
        f"{arm.first_token_ms_p95:.0f}",
        f"{arm.token_ms_median:.1f}",
        f"{arm.tokens_reused}",
        f"{arm.tokens_computed}",
        f"{arm.reuse_lost}",
    )


def notes(report: BenchReport) -> Iterator[str]:
    yield (
        f"Medians of {number_of(report.repeats, 'run')}. first: time to the first token; next: from token to token; "
        "reused, new: tokens of prompts, found and computed; lost: reuse that was promised and evicted before its turn."
    )
    yield "The engine is this package's own, not TensorRT-LLM: it shows what each part costs and brings in one loop."
    if report.simulated:
        yield "The device is simulated, so times are numpy's and say nothing of a GPU."


def plot(report: BenchReport, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra; Figure alone needs no display and no global state

    arms = report.arms[::-1]
    names = [arm.name for arm in arms]
    figure = Figure(figsize=(10, 0.36 * len(arms) + 1.4), layout="constrained")
    throughput, first = figure.subplots(1, 2, sharey=True)
    throughput.barh(names, [arm.tokens_per_s for arm in arms])
    throughput.set(xlabel="tokens per second", title=report.device)
    first.barh(names, [arm.first_token_ms_p95 for arm in arms], alpha=0.35, label="95 %")
    first.barh(names, [arm.first_token_ms_median for arm in arms], label="median")
    first.set(xlabel="time to the first token, ms", title=f"{report.requests} requests, {report.rate:g} a second")
    first.legend()
    for axes in (throughput, first):
        axes.grid(visible=True, axis="x", alpha=0.3)
    save(figure, path)
