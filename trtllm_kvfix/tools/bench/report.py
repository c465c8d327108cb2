"""A report as a table and plain words. Nothing is counted here."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from trtllm_kvfix.plurals import number_of
from trtllm_kvfix.tools.bench.outcome import ArmOutcome, Report

HEADINGS = ("tokens\n/s", "first\nms", "95 %\nms", "next\nms", "reused", "new", "lost")


def print_report(console: Console, report: Report) -> None:
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


def cells(arm: ArmOutcome) -> tuple[str, ...]:
    return (
        f"{arm.tokens_per_s:.0f}",
        f"{arm.first_token_ms_median:.0f}",
        f"{arm.first_token_ms_p95:.0f}",
        f"{arm.token_ms_median:.1f}",
        f"{arm.tokens_reused}",
        f"{arm.tokens_computed}",
        f"{arm.reuse_lost}",
    )


def notes(report: Report) -> Iterator[str]:
    yield (
        f"Medians of {number_of(report.repeats, 'run')}. first: time to the first token; next: from token to token; "
        "reused, new: tokens of prompts, found and computed; lost: reuse that was promised and evicted before its turn."
    )
    yield "The engine is this package's own, not TensorRT-LLM: it shows what each part costs and brings in one loop."
    if report.simulated:
        yield "The device is simulated, so times are numpy's and say nothing of a GPU."
