"""`trtllm-kvfix replay`: the command line around the replay, and the workloads that it generates.

A generated workload comes with the cache that it is meant for. The same seed gives the same tokens everywhere.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from click.core import ParameterSource
from numpy.typing import NDArray

from trtllm_kvfix import usage
from trtllm_kvfix.errors import EXIT_INTERRUPTED, SettingsError
from trtllm_kvfix.sizes import ModelShape, blocks_of
from trtllm_kvfix.tools.pictures import check_plot
from trtllm_kvfix.tools.progress import progress_bar
from trtllm_kvfix.tools.replay.engine import Workload
from trtllm_kvfix.tools.replay.outcome import AdmissionKind, CacheShape, HostAdmission, HostTierKind, ReplayReport
from trtllm_kvfix.tools.replay.report import plot, print_policies, print_report, print_sweep
from trtllm_kvfix.tools.replay.runs import Result, Run, comparison, execute, jobs_for, policies, sweep
from trtllm_kvfix.tools.replay.source import STANDARD_INPUT, name_of
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TOKENS_PER_HASH_ID, TOKENS_PER_HASH_ID_MAX, TraceRequest, read_trace
from trtllm_kvfix.tools.terminal import terminal

# ---- generated workloads ----

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


# ---- the command ----


class _Task(NamedTuple):
    workload: Workload
    shape: CacheShape
    lines_bad: int


_EXAMPLES = """\b
Examples:
  trtllm-kvfix replay --generate small --compare
  trtllm-kvfix replay trace.jsonl.gz --layers 32 --kv-heads 8 --head-dim 128 \\
      --blocks-primary 60GiB --iteration-ms 20 --sweep 0,100GiB,400GiB --plot curve.svg
  zcat trace.jsonl.gz | trtllm-kvfix replay - --host-tier connector --blocks-host 20000
"""


@click.command(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("trace", required=False, type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--generate",
    "generated",
    type=click.Choice(sorted(GENERATORS)),
    help="Generate a workload instead of reading a TRACE.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of --generate.")
@click.option(
    "--tokens-per-hash-id",
    type=click.IntRange(1, TOKENS_PER_HASH_ID_MAX),
    show_default=f"what a recording says, or {TOKENS_PER_HASH_ID}",
)
@click.option("--skip-bad", is_flag=True, help="Leave bad lines of TRACE out and count them.")
@click.option("--tokens-per-block", type=click.IntRange(min=1))
@click.option("--blocks-primary", metavar="SIZE", help="Primary (GPU) pool: blocks, or bytes such as 40GiB.")
@click.option("--blocks-host", metavar="SIZE", help="Host pool: blocks, or bytes such as 200GiB.")
@click.option(
    "--host-tier",
    type=click.Choice([kind.value for kind in HostTierKind]),
    help="TensorRT-LLM's own host tier, the native manager's with adaptive, or the offload connector's.",
)
@click.option(
    "--host-admission",
    type=click.Choice([kind.value for kind in HostAdmission]),
    help="kvfix.offload.admission of the connector.",
)
@click.option("--remote", "blocks_remote", metavar="SIZE", help="A store behind the connector's host tier.")
@click.option("--max-batch-size", type=click.IntRange(min=1), help="Largest number of sequences at a time.")
@click.option("--max-num-tokens", type=click.IntRange(min=1), help="Token budget of an iteration.")
@click.option(
    "--tokens-per-iteration", type=click.IntRange(min=1), help="Tokens by which each answer grows in an iteration."
)
@click.option("--iteration-ms", type=usage.Real(min=0), help="Length of an iteration; 0 ignores timestamps.")
@click.option("--bytes-per-block", type=click.IntRange(min=1), help="Bytes of keys and values in a block.")
@click.option(
    "--layers", type=click.IntRange(min=1), help="Layers of the model; with the next three, gives --bytes-per-block."
)
@click.option("--kv-heads", type=click.IntRange(min=1))
@click.option("--head-dim", type=click.IntRange(min=1))
@click.option("--dtype-bytes", type=click.IntRange(min=1), help="Bytes of one number in the cache.")
@click.option(
    "--prefill-tokens-per-s",
    type=usage.Real(min=0, min_open=True),
    help="With --host-gb-per-s: compute a hit of the connector's tier that would take longer to load.",
)
@click.option("--host-gb-per-s", type=usage.Real(min=0, min_open=True), help="Speed of loads from the host.")
@click.option(
    "--store-gb-per-s",
    type=usage.Real(min=0, min_open=True),
    help="Speed of fetches from --remote, beside the two speeds above: a slower one is computed as well.",
)
@click.option("--compare", is_flag=True, help="Also admit requests one by one, and show both results.")
@click.option(
    "--compare-policies",
    is_flag=True,
    help="For each host size: TensorRT-LLM's own tier, the connector, and the bound.",
)
@click.option("--price-per-gib", type=usage.Real(min=0), help="Show what each size of --compare-policies costs.")
@click.option("--sweep", "sweep_sizes", metavar="SIZE,...", help="Replay once for each of these host sizes.")
@usage.file_option("plot", "Draw --sweep: .png or .svg.")
@click.option("--jobs", type=click.IntRange(min=1), help="Replays that run at a time.  [default: one for each core]")
@usage.json_option
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    compare: bool,
    price_per_gib: float | None,
    plot_path: Path | None,
    jobs: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Replay a request TRACE through the block manager: hit rates, evictions, bytes moved, budget.

    TRACE is a file of JSON lines, gzipped or not, or - for standard input. The command needs no GPU and no model. The
    exit code is 1 if batch admission exceeded its token budget or reused something else than estimated (a bug); 2 on
    bad usage, a bad trace, or too few blocks for every request; 130 after Ctrl-C, with the result so far, marked
    partial.
    """
    sizes: str | None = options["sweep_sizes"]
    compare_policies: bool = options["compare_policies"]
    _check_usage(ctx, sizes, compare=compare, plot_path=plot_path)
    if compare_policies:
        _check_policies(ctx, compare=compare, plot_path=plot_path)
        options["host_tier"] = HostTierKind.CONNECTOR.value  # which may have a store behind it
    elif price_per_gib is not None:
        raise click.UsageError("--price-per-gib needs --compare-policies, which is missing")
    try:
        task = _task(ctx, options)
    except KeyboardInterrupt:
        click.echo("Interrupted while the trace was read; nothing was replayed.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if price_per_gib is not None and task.shape.bytes_per_block is None:
        raise click.UsageError("--price-per-gib needs the size of a block: --bytes-per-block, or the model's shape")
    runs = _runs(task.shape, sizes, compare=compare, compare_policies=compare_policies)
    result = _executed(task, runs, jobs or jobs_for(task.workload))
    if not result.outcomes:
        click.echo("Interrupted before the first replay had a result.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    report = ReplayReport(
        workload=task.workload.name, lines_bad=task.lines_bad, partial=result.partial, outcomes=result.outcomes
    )
    if compare_policies and not as_json:
        print_policies(terminal(), report, price_per_gib)
    else:
        _show(report, is_sweep=sizes is not None, as_json=as_json)
    if plot_path is not None and report.partial:
        click.echo(f"{plot_path} was not drawn: the sweep is partial", err=True)
    elif plot_path is not None:
        plot(report.outcomes, report.workload, plot_path)
    sys.exit(_exit_code(report))


def _check_usage(ctx: click.Context, sizes: str | None, *, compare: bool, plot_path: Path | None) -> None:
    if compare and sizes is not None:
        raise click.UsageError("--compare and --sweep exclude each other: a sweep runs batch admission only")
    if sizes is not None and _was_typed(ctx, "blocks_host"):
        raise click.UsageError("--blocks-host and --sweep exclude each other: the sweep names the host sizes")
    if plot_path is not None:
        if sizes is None:
            raise click.UsageError("--plot draws the curve of a --sweep, which is missing")
        check_plot(plot_path)


def _check_policies(ctx: click.Context, *, compare: bool, plot_path: Path | None) -> None:
    """Refuse what says nothing beside --compare-policies, which runs every tier and admission."""
    beside = {"--compare": compare, "--plot": plot_path is not None}
    beside |= {f"--{name.replace('_', '-')}": _was_typed(ctx, name) for name in ("host_tier", "host_admission")}
    for option in [name for name, is_given in beside.items() if is_given]:
        raise click.UsageError(f"{option} and --compare-policies exclude each other: it runs every tier and admission")


def _runs(shape: CacheShape, sizes: str | None, *, compare: bool, compare_policies: bool) -> list[Run]:
    hosts = [shape.blocks_host]
    if sizes is not None:
        hosts = [blocks_of(size, shape.bytes_per_block, "--sweep") for size in sizes.split(",")]
    if compare_policies:
        return policies(shape, hosts)
    if sizes is not None:
        return sweep(shape, hosts)
    return comparison(shape) if compare else [Run(shape)]


def _executed(task: _Task, runs: list[Run], jobs: int) -> Result:
    with progress_bar("replay", len(runs) * len(task.workload.requests)) as on_finished:
        return execute(task.workload, runs, on_finished, jobs)


def _task(ctx: click.Context, options: dict[str, Any]) -> _Task:
    trace: Path | None = options["trace"]
    if (trace is None) == (options["generated"] is None):
        both = f", not both: the TRACE is {str(trace)!r}" if trace is not None else ""
        raise click.UsageError(f"give either a TRACE or --generate{both}")
    for name in ("seed",) if trace is not None else ("skip_bad", "tokens_per_hash_id"):
        if _was_typed(ctx, name):
            where = "--generate" if trace is not None else "a TRACE"
            raise click.UsageError(f"--{name.replace('_', '-')} needs {where}, which is missing")
    if trace is None:
        made = generate(options["generated"], options["seed"])
        # The workload brings the cache it is meant for; what the user typed still comes first.
        kept = {"bytes_per_block", *(["host_tier"] if options["compare_policies"] else [])}
        brought = {name: value for name, value in made.shape if name not in kept and not _was_typed(ctx, name)}
        return _Task(made.workload, _shape(options | brought), 0)
    shape = _shape(options)
    read = read_trace(trace, tokens_per_hash_id=options["tokens_per_hash_id"], skip_bad=options["skip_bad"])
    book = TokenBook(read.requests, read.tokens_per_hash_id)
    name = name_of(trace) if trace == STANDARD_INPUT else trace.name
    return _Task(Workload(name, read.requests, book), shape, len(read.lines_bad))


def _was_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _shape(options: dict[str, Any]) -> CacheShape:
    bytes_per_block = _bytes_per_block(options)
    blocks_remote = blocks_of(options["blocks_remote"], bytes_per_block, "--remote")
    if blocks_remote and HostTierKind(options["host_tier"]) is not HostTierKind.CONNECTOR:
        raise click.UsageError("--remote is the store behind the connector's host tier: add --host-tier connector")
    return CacheShape(
        tokens_per_block=options["tokens_per_block"],
        blocks_primary=blocks_of(options["blocks_primary"], bytes_per_block, "--blocks-primary"),
        blocks_host=blocks_of(options["blocks_host"], bytes_per_block, "--blocks-host"),
        host_tier=HostTierKind(options["host_tier"]),
        host_admission=HostAdmission(options["host_admission"]),
        blocks_remote=blocks_remote,
        bytes_per_block=bytes_per_block,
        max_batch_size=options["max_batch_size"],
        max_num_tokens=options["max_num_tokens"],
        tokens_per_iteration=options["tokens_per_iteration"],
        iteration_ms=options["iteration_ms"],
        **_speeds(options, bytes_per_block, blocks_remote),
    )


SPEEDS = ("prefill_tokens_per_s", "host_gb_per_s")


def _speeds(options: dict[str, Any], bytes_per_block: int | None, blocks_remote: int) -> dict[str, float]:
    given = {name: options[name] for name in SPEEDS if options[name] is not None}
    store: float | None = options["store_gb_per_s"]
    if not given and store is None:
        return {}
    if len(given) < len(SPEEDS):
        raise click.UsageError("--prefill-tokens-per-s and --host-gb-per-s are needed together; one is missing")
    if bytes_per_block is None:
        raise click.UsageError("--host-gb-per-s needs the size of a block: --bytes-per-block, or the model's shape")
    if HostTierKind(options["host_tier"]) is not HostTierKind.CONNECTOR:
        raise click.UsageError("--host-gb-per-s is about hits of the connector: add --host-tier connector")
    if store is None:
        return given
    if not blocks_remote:
        raise click.UsageError("--store-gb-per-s is about fetches from --remote: give its size")
    return given | {"store_gb_per_s": store}


def _bytes_per_block(options: dict[str, Any]) -> int | None:
    given: int | None = options["bytes_per_block"]
    model = {name: options[name] for name in ("layers", "kv_heads", "head_dim")}
    missing = [f"--{name.replace('_', '-')}" for name, value in model.items() if value is None]
    if len(missing) == len(model):
        return given
    if missing:
        raise SettingsError(f"--layers, --kv-heads and --head-dim are needed together; missing: {', '.join(missing)}")
    computed = ModelShape(**model, dtype_bytes=options["dtype_bytes"]).bytes_per_block(options["tokens_per_block"])
    if given not in (None, computed):
        raise SettingsError(f"--bytes-per-block is {given}, the model's shape gives {computed}: give one of the two")
    return computed


def _show(report: ReplayReport, *, is_sweep: bool, as_json: bool) -> None:
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    elif is_sweep:
        print_sweep(terminal(), report)
    else:
        print_report(terminal(), report)


def _exit_code(report: ReplayReport) -> int:
    if any(not outcome.kept_its_promise for outcome in report.outcomes if outcome.admission is AdmissionKind.BATCH):
        return 1
    if report.partial:
        return EXIT_INTERRUPTED
    return SettingsError.exit_code if all(outcome.requests.all_refused for outcome in report.outcomes) else 0
