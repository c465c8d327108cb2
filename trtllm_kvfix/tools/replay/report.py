"""A report as tables, plain words, and the picture of a sweep. Nothing is counted here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from trtllm_kvfix.plurals import form, number_of
from trtllm_kvfix.sizes import bytes_text
from trtllm_kvfix.tools.hits import table_of_hits
from trtllm_kvfix.tools.pictures import save
from trtllm_kvfix.tools.replay.outcome import (
    AdmissionKind,
    Bounds,
    CacheShape,
    HostAdmission,
    HostTierKind,
    ReplayOutcome,
    ReplayReport,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TIERS = {
    HostTierKind.BUILT_IN: "TensorRT-LLM's own host tier (takes what the GPU evicts, drops the least recently used)",
    HostTierKind.NATIVE: "the native manager's host tier (admission: adaptive, drops the least recently used)",
    HostTierKind.CONNECTOR: "the offload connector's host tier (admission: {admission}, drops {dropped})",
}
_DROPPED = {
    HostAdmission.ALL: "the least recently used",
    HostAdmission.ADAPTIVE: "what its slots should bring least for",
}
_TO_HOST = {
    HostTierKind.BUILT_IN: "blocks evicted to host",
    HostTierKind.NATIVE: "blocks evicted to host",
    HostTierKind.CONNECTOR: "blocks stored to host",
}
_ADMISSIONS = {AdmissionKind.BATCH: "batch admission", AdmissionKind.ONE_BY_ONE: "one-by-one admission"}


def tier_of(shape: CacheShape) -> str:
    return _TIERS[shape.host_tier].format(admission=shape.host_admission.value, dropped=_DROPPED[shape.host_admission])


def to_host(shape: CacheShape) -> str:
    return _TO_HOST[shape.host_tier]


def admission_of(admission: AdmissionKind) -> str:
    return _ADMISSIONS[admission]


def pool_of(shape: CacheShape) -> str:
    return f"{number_of(shape.blocks_primary, 'primary block')} of {number_of(shape.tokens_per_block, 'token')}"


TO_HOST = "blocks to host"  # each tier has a word of its own for it
Row = tuple[str, Callable[[ReplayOutcome], str]]


def _share(count: int, rate: float) -> str:
    return f"{count:,} ({rate:.1%})"


def _with_bytes(blocks: int, count: int | None) -> str:
    return f"{blocks:,}" if count is None else f"{blocks:,} ({bytes_text(count)})"


def _bytes_or_blocks(blocks: int, count: int | None) -> str:
    return f"{blocks:,}" if count is None else bytes_text(count)


def _at_most(outcome: ReplayOutcome, of: Callable[[Bounds], int]) -> str:
    return "" if outcome.bounds is None else _share(of(outcome.bounds), outcome.rate(of(outcome.bounds)))


def _from_remote(outcome: ReplayOutcome) -> str:
    remote = outcome.tokens.remote
    return _share(remote, outcome.rate(remote)) if outcome.shape.blocks_remote else ""


CACHE_ROWS: list[Row] = [
    ("requests finished", lambda o: f"{o.requests.finished:,} of {o.requests.total:,}"),
    ("requests refused (too large)", lambda o: f"{o.requests.refused:,}"),
    ("iterations", lambda o: f"{o.iterations:,}"),
    ("prompt tokens reused", lambda o: _share(o.tokens.primary + o.tokens.host, o.tokens.hit_rate)),
    ("  from primary", lambda o: _share(o.tokens.primary, o.tokens.hit_rate - o.tokens.hit_rate_host)),
    ("  from host", lambda o: _share(o.tokens.host, o.tokens.hit_rate_host)),
    ("    of these, from the remote tier", _from_remote),
    ("  at most, clairvoyant", lambda o: _at_most(o, lambda b: b.clairvoyant)),
    ("  ceiling, of no limit", lambda o: _at_most(o, lambda b: b.ceiling)),
    ("prompt tokens computed", lambda o: f"{o.tokens.computed:,}"),
    ("prompt blocks reused", lambda o: _share(o.blocks.primary + o.blocks.host, o.blocks.hit_rate)),
    ("  from primary", lambda o: _share(o.blocks.primary, o.blocks.hit_rate - o.blocks.hit_rate_host)),
    ("  from host", lambda o: _share(o.blocks.host, o.blocks.hit_rate_host)),
    (TO_HOST, lambda o: _with_bytes(o.moved.blocks_to_host, o.moved.bytes_to_host)),
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


def _print_end(console: Console, report: ReplayReport, table: Table) -> None:
    console.print(table)
    hits = [(f"{_size_of(one.shape)}, {policy_of(one.shape)}", each) for one in report.outcomes for each in one.hits]
    if hits:
        console.print(table_of_hits("host tier", hits))
    for line in conclusions(report.outcomes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_report(console: Console, report: ReplayReport) -> None:
    _print_header(console, report)
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for outcome in report.outcomes:
        table.add_column(outcome.admission.value, justify="right", no_wrap=True)
    for title, cell in (*CACHE_ROWS, *BUDGET_ROWS):
        shown = to_host(report.outcomes[0].shape) if title is TO_HOST else title
        cells = [cell(outcome) for outcome in report.outcomes]
        if any(cells):
            table.add_row(shown, *cells)
    _print_end(console, report, table)


def print_sweep(console: Console, report: ReplayReport) -> None:
    _print_header(console, report)
    table = Table(box=None, header_style="bold")
    is_remote = any(outcome.shape.blocks_remote for outcome in report.outcomes)
    fifth = "remote" if is_remote else "gain"  # both do not fit into eighty columns
    for title in ("host tier", "size", "reused", "from host", fifth, "at most", "to host", "back"):
        table.add_column(title, justify="right", no_wrap=True)
    before: ReplayOutcome | None = None
    for outcome in report.outcomes:
        size = outcome.shape.bytes_per_block
        table.add_row(
            f"{outcome.shape.blocks_host:,}" + (" (partial)" if outcome.partial else ""),
            "" if size is None else bytes_text(size * outcome.shape.blocks_host),
            f"{outcome.tokens.hit_rate:.2%}",
            f"{outcome.tokens.hit_rate_host:.2%}",
            f"{outcome.rate(outcome.tokens.remote):.2%}" if is_remote else _gain(before, outcome),
            _rate(outcome, lambda bounds: bounds.clairvoyant),
            _bytes_or_blocks(outcome.moved.blocks_to_host, outcome.moved.bytes_to_host),
            _bytes_or_blocks(outcome.moved.blocks_to_primary, outcome.moved.bytes_to_primary),
        )
        before = outcome
    if report.outcomes[0].bounds is not None:
        ceiling = _rate(report.outcomes[0], lambda bounds: bounds.ceiling)
        table.add_row("ceiling", "no limit", "", "", "", ceiling, "", "")
    _print_end(console, report, table)


def print_policies(console: Console, report: ReplayReport, price_per_gib: float | None) -> None:
    """A line for each policy at each size: what each tier brings, and what that leaves of the most that could be."""
    _print_header(console, report, is_mixed=True)
    table = Table(box=None, header_style="bold")
    is_remote = any(outcome.shape.blocks_remote for outcome in report.outcomes)
    titles = [
        "size",
        "policy",
        "GPU",
        "host",
        *(["store"] if is_remote else []),
        "at most",
        "of gap",
        "to host",
    ]
    for title in titles if price_per_gib is None else [*titles, "price"]:
        table.add_column(title, justify="left" if title == "policy" else "right", no_wrap=True)
    built_in: ReplayOutcome | None = None
    for outcome in report.outcomes:
        shape, tokens = outcome.shape, outcome.tokens
        if shape.host_tier is HostTierKind.BUILT_IN:
            built_in = outcome
        cells = [
            _size_of(shape),
            policy_of(shape) + (" (partial)" if outcome.partial else ""),
            f"{outcome.rate(tokens.primary):.2%}",
            f"{outcome.rate(tokens.host - tokens.remote):.2%}",
            *([f"{outcome.rate(tokens.remote):.2%}"] if is_remote else []),
            _rate(outcome, lambda bounds: bounds.clairvoyant),
            gap_closed(built_in, outcome),
            _bytes_or_blocks(outcome.moved.blocks_to_host, outcome.moved.bytes_to_host),
        ]
        if price_per_gib is not None and shape.bytes_per_block is not None:
            cells.append(f"{price_per_gib * shape.bytes_per_block * shape.blocks_host / 2**30:,.0f}")
        table.add_row(*cells)
    _print_end(console, report, table)


def _size_of(shape: CacheShape) -> str:
    size = shape.bytes_per_block
    return f"{shape.blocks_host:,}" if size is None else bytes_text(size * shape.blocks_host)


def policy_of(shape: CacheShape) -> str:
    if not shape.blocks_host:
        return "none"
    return shape.host_admission.value if shape.host_tier is HostTierKind.CONNECTOR else shape.host_tier.value


def gap_closed(built_in: ReplayOutcome | None, outcome: ReplayOutcome) -> str:
    """The share of what the built-in tier leaves of `at most`; below 0 where it has more."""
    if built_in is None or built_in is outcome or outcome.bounds is None or built_in.bounds is None:
        return ""
    reused, before = (each.tokens.primary + each.tokens.host for each in (outcome, built_in))
    gap = built_in.bounds.clairvoyant - before
    return f"{(reused - before) / gap:+.0%}" if gap > 0 else ""


def _gain(before: ReplayOutcome | None, outcome: ReplayOutcome) -> str:
    return "" if before is None else f"{100 * (outcome.tokens.hit_rate - before.tokens.hit_rate):+.2f}"


def _rate(outcome: ReplayOutcome, of: Callable[[Bounds], int]) -> str:
    return "" if outcome.bounds is None else f"{outcome.rate(of(outcome.bounds)):.2%}"


def conclusions(outcomes: Sequence[ReplayOutcome]) -> list[str]:
    """Put the numbers into words: per-request admission first if it was run, batch admission last."""
    if not any(outcome.budget.promises for outcome in outcomes):
        return [_nothing_ran(outcomes[0])]
    one_by_one = [outcome for outcome in outcomes if outcome.admission is AdmissionKind.ONE_BY_ONE]
    batch = [outcome for outcome in outcomes if outcome.admission is AdmissionKind.BATCH]
    return [_of_one_by_one(outcome) for outcome in one_by_one] + _of_batch(batch)


def _nothing_ran(outcome: ReplayOutcome) -> str:
    if not outcome.requests.all_refused:
        return "Nothing was admitted before the interrupt, so the numbers say nothing."
    refused = outcome.requests.refused
    each = f"{form(refused, 'the', 'each of the')} {number_of(refused, 'request')}"
    blocks = number_of(outcome.shape.blocks_primary, "primary block")
    return f"NOTHING RAN: {each} needs more than the {blocks} for its prompt and answer; raise --blocks-primary."


def _of_one_by_one(outcome: ReplayOutcome) -> str:
    budget = outcome.budget
    iterations = number_of(budget.iterations_admitting, "iteration")
    said = f"One by one: {budget.overshoots:,} of {iterations} exceeded {_limit(outcome)}"
    if not budget.overshoots:
        return f"{said} on this workload."
    why = "adding one request evicted what the next was estimated to reuse"
    return f"{said}, at most by {budget.tokens_over_max:,}: {why}."


def _of_batch(outcomes: Sequence[ReplayOutcome]) -> list[str]:
    failed = [outcome.budget for outcome in outcomes if not outcome.kept_its_promise]
    if failed:
        return [
            f"FAILED: batch admission exceeded the budget in {budget.overshoots:,} of "
            f"{number_of(budget.iterations_admitting, 'iteration')} and broke {budget.promises_broken:,} of "
            f"{number_of(budget.promises, 'estimate')}. This is a bug in the block manager."
            for budget in failed
        ]
    if not outcomes:
        return []
    iterations = number_of(sum(outcome.budget.iterations_admitting for outcome in outcomes), "iteration")
    promises = sum(outcome.budget.promises for outcome in outcomes)
    requests = f"{form(promises, 'the', 'all')} {number_of(promises, 'request')}"
    kept = f"{requests} reused exactly what had been estimated"
    return [f"In a batch: 0 of {iterations} exceeded {_limit(outcomes[0])}, and {kept}."]


def _limit(outcome: ReplayOutcome) -> str:
    return f"the budget of {number_of(outcome.shape.max_num_tokens, 'token')}"


def _print_header(console: Console, report: ReplayReport, *, is_mixed: bool = False) -> None:
    shape = report.outcomes[0].shape
    console.print(f"{report.workload}", style="bold", markup=False, highlight=False)
    console.print(
        f"{pool_of(shape)}; at most {number_of(shape.max_batch_size, 'sequence')} and "
        f"{number_of(shape.max_num_tokens, 'token')} an iteration",
        highlight=False,
        soft_wrap=True,
    )
    if not is_mixed and any(outcome.shape.blocks_host for outcome in report.outcomes):
        console.print(f"Host blocks: {tier_of(shape)}", highlight=False, soft_wrap=True)
    if report.lines_bad:
        were = form(report.lines_bad, "was", "were")
        console.print(f"{number_of(report.lines_bad, 'bad line')} {were} left out", style="bold", highlight=False)
    if report.partial:
        console.print("PARTIAL: interrupted; the numbers are of what ran until then", style="bold", highlight=False)


def plot(outcomes: Sequence[ReplayOutcome], title: str, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra; Figure alone needs no display and no global state

    shape = outcomes[0].shape
    size = shape.bytes_per_block
    hosts = [outcome.shape.blocks_host * (1 if size is None else size / 1024**3) for outcome in outcomes]
    total = [100 * outcome.tokens.hit_rate for outcome in outcomes]
    primary = [100 * (outcome.tokens.hit_rate - outcome.tokens.hit_rate_host) for outcome in outcomes]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(hosts, primary, alpha=0.25, label="from primary")
    axes.fill_between(hosts, primary, total, alpha=0.25, label="from host")
    axes.plot(hosts, total, marker="o", label="reused")
    _draw_bounds(axes, hosts, outcomes)
    unit = "blocks" if size is None else "GiB"
    axes.set(xlabel=f"host tier, {unit}", ylabel="prompt tokens reused, %")
    tier = tier_of(shape)
    subtitle = f"{tier[0].upper()}{tier[1:]}\n{pool_of(shape)}; {admission_of(outcomes[0].admission)}"
    axes.set_title(f"{title}\n{subtitle}", fontsize="medium")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=min(hosts))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    save(figure, path)


def _draw_bounds(axes: "Axes", hosts: Sequence[float], outcomes: Sequence[ReplayOutcome]) -> None:
    bounded = [(outcome, outcome.bounds) for outcome in outcomes if outcome.bounds is not None]
    if not bounded:
        return
    clairvoyant = [100 * outcome.rate(bounds.clairvoyant) for outcome, bounds in bounded]
    ceiling = max(100 * outcome.rate(bounds.ceiling) for outcome, bounds in bounded)
    axes.plot(
        hosts, clairvoyant, linestyle="--", marker=".", color="0.35", label="at most (a clairvoyant cache of that size)"
    )
    axes.axhline(ceiling, linestyle=":", color="0.35", label="ceiling (a cache without limit)")
