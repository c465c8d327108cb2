"""`trtllm-serve` (surface 7.1). Without a port it does not wait for traffic: it answers a few prompts and prints what
happened. With a port it serves until it is told to end."""

import json
from dataclasses import asdict
from typing import Any

import click
import yaml

from ..llmapi.llm import LLM
from ..llmapi.llm_utils import update_llm_args_with_extra_dict
from ..serve.openai_server import serve_until_told


class DefaultGroup(click.Group):
    """`trtllm-serve MODEL` means `trtllm-serve serve MODEL`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["serve", *args]
        return super().resolve_command(ctx, args)


@click.command("serve")
@click.argument("model", type=str)
@click.option("--backend", type=click.Choice(["pytorch", "_autodeploy"]), default="pytorch")
@click.option("--max_batch_size", type=int, default=8)
@click.option("--max_num_tokens", type=int, default=64)
@click.option("--tp_size", type=int, default=1)
@click.option("--host", type=str, default="localhost")
@click.option("--port", type=int, default=None)
@click.option(
    "--config",
    "--extra_llm_api_options",
    "extra_llm_api_options",
    type=click.Path(exists=True, dir_okay=False),
    default=None,
    help="YAML file; comes before the options.",
)
def serve(
    model: str,
    backend: str,
    max_batch_size: int,
    max_num_tokens: int,
    tp_size: int,
    host: str,
    port: int | None,
    extra_llm_api_options: str | None,
) -> None:
    """One line of JSON for every rank; exit code 1 where a rank failed."""
    llm_args: dict[str, Any] = {
        "model": model,
        "backend": backend,
        "max_batch_size": max_batch_size,
        "max_num_tokens": max_num_tokens,
        "tensor_parallel_size": tp_size,
    }
    if extra_llm_api_options is not None:
        with open(extra_llm_api_options, encoding="utf-8") as file:  # noqa: PTH123  as upstream does
            given = yaml.safe_load(file)
        llm_args = update_llm_args_with_extra_dict(llm_args, given or {}, extra_llm_api_options)
    llm = LLM(**llm_args)
    if port is not None:
        serve_until_told(llm.args, small_workload(), (host, port))
        return
    try:
        reports = llm.generate(small_workload(), max_tokens=4)
    finally:
        llm.shutdown()
    for report in sorted(reports, key=lambda report: report.rank):
        click.echo(json.dumps(asdict(report)))
    if any(report.error is not None for report in reports):
        raise click.exceptions.Exit(1)


def small_workload() -> list[list[int]]:
    """Prompts of many lengths, so that batches change from step to step."""
    return [[100 * number + position for position in range(5 + 3 * number % 17)] for number in range(12)]


main = DefaultGroup(commands={"serve": serve})

if __name__ == "__main__":
    main()
