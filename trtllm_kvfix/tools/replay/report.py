"""A report as tables and plain words. Nothing is counted here."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from trtllm_kvfix.sizes import bytes_text
from trtllm_kvfix.tools.replay.outcome import Admission, HostTierKind, Outcome, Report

HOST_TIERS = {HostTierKind.BUILT_IN: "", HostTierKind.CONNECTOR: "; host blocks are the offload connector's"}
Row = tuple[str, Callable[[Outcome], str]]


def _share(count: int, rate: float) -> str:
    return f"{count:,} ({rate:.1%})"


def _with_bytes(blocks: int, count: int | None) -> str:
    return f"{blocks:,}" if count is None else f"{blocks:,} ({bytes_text(count)})"


def _bytes_or_blocks(blocks: int, count: int | None) -> str:
    return f"{blocks:,}" if count is None else bytes_text(count)


CACHE_ROWS: list[Row] = [
    ("requests finished", lambda o: f"{o.requests.finished:,} of {o.requests.total:,}"),
    ("requests refused (too large)", lambda o: f"{o.requests.refused:,}"),
    ("iterations", lambda o: f"{o.iterations:,}"),
    ("prompt tokens reused", lambda o: _share(o.tokens.primary + o.tokens.host, o.tokens.hit_rate)),
    ("  from primary", lambda o: _share(o.tokens.primary, o.tokens.hit_rate - o.tokens.hit_rate_host)),
    ("  from host", lambda o: _share(o.tokens.host, o.tokens.hit_rate_host)),
    ("    of these, from the remote tier", lambda o: f"{o.tokens.remote:,}"),
    ("prompt tokens computed", lambda o: f"{o.tokens.computed:,}"),
    ("prompt blocks reused", lambda o: _share(o.blocks.primary + o.blocks.host, o.blocks.hit_rate)),
    ("  from primary", lambda o: _share(o.blocks.primary, o.blocks.hit_rate - o.blocks.hit_rate_host)),
    ("  from host", lambda o: _share(o.blocks.host, o.blocks.hit_rate_host)),
    ("blocks evicted to host", lambda o: _with_bytes(o.moved.blocks_to_host, o.moved.bytes_to_host)),
    ("blocks brought back", lambda o: _with_bytes(o.moved.blocks_to_primary, o.moved.bytes_to_primary)),
    ("blocks copied", lambda o: _with_bytes(o.moved.blocks_within_primary, o.moved.bytes_within_primary)),
    ("blocks dropped", lambda o: f"{o.blocks_dropped:,}"),
]
BUDGET_ROWS: list[Row] = [
    ("admissions put off by the budget", lambda o: f"{o.budget.deferred:,}"),
    ("iterations that admitted", lambda o: f"{o.budget.iterations_admitting:,}"),
    ("  of these over the budget", lambda o: f"{o.budget.overshoots:,}"),
    ("tokens over the budget", lambda o: f"{o.budget.tokens_over:,}"),
    ("  most in one iteration", lambda o: f"{o.budget.tokens_over_max:,}"),
    ("estimates that did not come true", lambda o: f"{o.budget.promises_broken:,} of {o.budget.promises:,}"),
    ("tokens of reuse estimated and lost", lambda o: f"{o.budget.tokens_short:,}"),
]


def print_report(console: Console, report: Report) -> None:
    _print_header(console, report)
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for outcome in report.outcomes:
        table.add_column(outcome.admission.value, justify="right", no_wrap=True)
    for title, cell in (*CACHE_ROWS, *BUDGET_ROWS):
        table.add_row(title, *(cell(outcome) for outcome in report.outcomes))
    console.print(table)
    for line in conclusions(report.outcomes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_sweep(console: Console, report: Report) -> None:
    _print_header(console, report)
    table = Table(box=None, header_style="bold")
    for title in ("host blocks", "size", "reused", "from host", "from remote", "gain, points", "to host", "back"):
        table.add_column(title, justify="right", no_wrap=True)
    before: Outcome | None = None
    for outcome in report.outcomes:
        size = outcome.shape.bytes_per_block
        table.add_row(
            f"{outcome.shape.blocks_host:,}",
            "" if size is None else bytes_text(size * outcome.shape.blocks_host),
            f"{outcome.tokens.hit_rate:.2%}",
            f"{outcome.tokens.hit_rate_host:.2%}",
            f"{outcome.tokens.remote:,}",
            "" if before is None else f"{100 * (outcome.tokens.hit_rate - before.tokens.hit_rate):+.2f}",
            _bytes_or_blocks(outcome.moved.blocks_to_host, outcome.moved.bytes_to_host),
            _bytes_or_blocks(outcome.moved.blocks_to_primary, outcome.moved.bytes_to_primary),
        )
        before = outcome
    console.print(table)
    for line in conclusions(report.outcomes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def conclusions(outcomes: Sequence[Outcome]) -> list[str]:
    """What the numbers say, in words: per-request admission first where it was run, batch admission last."""
    lines = []
    for outcome in sorted(outcomes, key=lambda o: o.admission is Admission.BATCH):
        budget = outcome.budget
        limit = f"{outcome.shape.max_num_tokens:,} tokens"
        of = f"{budget.iterations_admitting:,} iterations"
        if outcome.admission is Admission.ONE_BY_ONE and budget.overshoots:
            lines.append(
                f"One by one: {budget.overshoots:,} of {of} passed the budget of {limit}, at most by "
                f"{budget.tokens_over_max:,}: adding one request evicted what the next was estimated to reuse."
            )
        elif outcome.admission is Admission.ONE_BY_ONE:
            lines.append(f"One by one: none of {of} passed the token budget on this workload.")
        elif not outcome.kept_its_promise:
            lines.append(
                f"FAILED: batch admission passed the budget in {budget.overshoots:,} of {of} and broke "
                f"{budget.promises_broken:,} of {budget.promises:,} estimates. This is a bug in the block manager."
            )
    if all(outcome.kept_its_promise for outcome in outcomes if outcome.admission is Admission.BATCH):
        batch = [outcome.budget for outcome in outcomes if outcome.admission is Admission.BATCH]
        lines.append(
            f"In a batch: none of {sum(b.iterations_admitting for b in batch):,} iterations passed it, and all "
            f"{sum(b.promises for b in batch):,} requests reused exactly what had been estimated."
        )
    return lines


def _print_header(console: Console, report: Report) -> None:
    shape = report.outcomes[0].shape
    console.print(f"{report.workload}", style="bold", markup=False, highlight=False)
    console.print(
        f"{shape.blocks_primary:,} primary blocks of {shape.tokens_per_block} tokens; at most {shape.max_batch_size} "
        f"sequences and {shape.max_num_tokens:,} tokens an iteration" + HOST_TIERS[shape.host_tier],
        highlight=False,
        soft_wrap=True,
    )
    if report.lines_bad:
        console.print(f"{report.lines_bad:,} bad lines were left out", style="bold", highlight=False)
    if report.partial:
        console.print("PARTIAL: interrupted; the numbers are of what ran until then", style="bold", highlight=False)
