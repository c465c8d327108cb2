"""The examples in the help of each command, and the completion of values that are our names."""

from collections.abc import Callable, Iterable
from math import isnan
from pathlib import Path
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Completer = Callable[[click.Context, click.Parameter, str], list[str]]

COMPLETION = """\b
To complete commands, options and values in this shell, run one of these.
To keep it, put it into the shell's own file:
  eval "$(_TRTLLM_KVFIX_COMPLETE=bash_source trtllm-kvfix)"   # or zsh_source
  _TRTLLM_KVFIX_COMPLETE=fish_source trtllm-kvfix | source
"""

# Each fits its line in the list of commands.
SUMMARIES = {
    "bench": "Run the embedded engine under load, with and without fixes.",
    "demo": "Show what users of one server read without each fix.",
    "disable": "Remove the hook that `enable` installed.",
    "doctor": "Say which hazards hit TensorRT-LLM here, and what to do.",
    "enable": "Install a hook: every Python here gets the fixes.",
    "events": "Record a running server's KV events for `replay`.",
    "replay": "Replay a request trace: hit rates and host tiers.",
    "reproduce": "Show a hazard by a script that needs nothing of ours.",
    "run": "Run a command with the fixes.",
    "selfcheck": "Try every fix on the installed TensorRT-LLM.",
    "status": "Show which fixes run in this user's processes.",
    "verify": "Show H1, H2, H5 and H9 beside their fixes, and H13, here.",
    "watch": "Find code that touches pinned memory in use by a GPU.",
}

# `replay` has its own, as they are long. Tests parse each of these.
EXAMPLES = {
    "bench": ("trtllm-kvfix bench --device cpu --requests 20", "trtllm-kvfix bench trace.jsonl --plot cost.svg"),
    "demo": ("trtllm-kvfix demo", "trtllm-kvfix demo --device cpu --html demo.html", "trtllm-kvfix demo --canary"),
    "disable": ("trtllm-kvfix disable",),
    "doctor": (
        "trtllm-kvfix doctor",
        "trtllm-kvfix doctor -- trtllm-serve MODEL --config server.yaml",
        "trtllm-kvfix doctor --verbose",
        "trtllm-kvfix doctor --source ~/TensorRT-LLM",
        "trtllm-kvfix doctor --json",
    ),
    "enable": ("trtllm-kvfix enable",),
    "events": ("trtllm-kvfix events http://localhost:8000 --record monday.jsonl --seconds 3600",),
    "reproduce": ("trtllm-kvfix reproduce", "trtllm-kvfix reproduce H2", "trtllm-kvfix reproduce H2 --script > h2.py"),
    "run": (
        "trtllm-kvfix run -- trtllm-serve MODEL --config server.yaml",
        "trtllm-kvfix run --fix token-budget=observe --metrics-port 9400 -- trtllm-serve MODEL",
        "trtllm-kvfix run -- mpirun -n 4 trtllm-llmapi-launch trtllm-serve MODEL --tp_size 4",
        "trtllm-kvfix run --dry-run -- python -m my_server",
    ),
    "selfcheck": ("trtllm-kvfix selfcheck",),
    "status": ("trtllm-kvfix status", "trtllm-kvfix status --dump > flight.json"),
    "verify": (
        "trtllm-kvfix verify --html verify.html",
        "trtllm-kvfix verify --device cuda:1 --case offsets-v1 --iterations 1000",
    ),
    "watch": ("trtllm-kvfix watch -- python my_server.py", "trtllm-kvfix watch --hold --html races.html -- ./program"),
}


def epilog_of(name: str) -> str | None:
    """Examples as they are typed; \\b keeps click from filling the lines."""
    if name not in EXAMPLES:
        return None
    title = "Examples" if len(EXAMPLES[name]) > 1 else "Example"
    return "\n".join(["\b", f"{title}:", *(f"  {example}" for example in EXAMPLES[name])])


def one_of(values: Iterable[str]) -> Completer:
    offered = tuple(values)

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  click's
        return [value for value in offered if value.startswith(incomplete)]

    return complete


def file_option(name: str, says: str) -> Callable[[Decorated], Decorated]:
    """`--html` and the like: a file that a command writes, as the parameter `html_path`."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(f"--{name}", f"{name}_path", metavar="FILE", type=kind, help=says)


class Real(click.FloatRange):
    """A range of numbers. click takes `nan` for one in every range, as it is neither below nor above any bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


SEED = click.IntRange(0, 2**64 - 1)  # of a device that is simulated

json_option = click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
device_option = click.option(
    "--device",
    "device_name",
    default="auto",
    show_default=True,
    metavar="cpu|cuda[:N]|auto",
    shell_complete=one_of(("auto", "cpu", "cuda", "cuda:0")),
)
