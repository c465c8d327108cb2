"""One client below one executor, in a process of its own: serves what a scene asks, and prints what was seen as JSON.

Needs the client's wheel, and torch unless the client is ours.
"""

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import trtllm_kvfix
from integration.clients.clients import CLIENTS, write_model
from integration.clients.executor import Executor
from integration.clients.stand_in import StandIn, running

PROMPT_TOKENS = 14  # three blocks and a half
WHOLE_TOKENS = 16
STEPS = 5  # of a request with four new tokens: one more than it needs is in flight when it ends


def turns(executor: Executor) -> None:
    """A conversation goes on when the device has forgotten it."""
    prompt = list(range(100, 100 + PROMPT_TOKENS))
    answer = executor.ask(1, prompt, 4)
    executor.forget()
    executor.ask(2, [*prompt, *answer, 7, 8, 9], 3)


def salted(executor: Executor) -> None:
    """The same tokens under another salt: serving them would reveal that somebody has asked before."""
    prompt = list(range(200, 200 + PROMPT_TOKENS))
    executor.ask(11, prompt, 4)
    executor.ask(12, prompt, 4, salt=7)


def adapted(executor: Executor) -> None:
    """The same tokens for an adapter: keys and values are others, so to serve them is wrong."""
    prompt = list(range(300, 300 + PROMPT_TOKENS))
    executor.ask(21, prompt, 4)
    executor.ask(22, prompt, 4, adapter=5)


def whole(executor: Executor) -> None:
    """All of a prompt lies in the host tier; its last token has to be computed all the same."""
    prompt = list(range(400, 400 + WHOLE_TOKENS))
    executor.ask(31, prompt, 4)
    executor.forget()
    executor.ask(32, prompt, 4)


def overtaken(executor: StandIn) -> None:
    """A load is planned into blocks that the step in flight still reads and writes."""
    prompt = list(range(500, 500 + PROMPT_TOKENS))
    executor.ask_in_a_row([(41, prompt, 4), (42, prompt, 4)], held_step=STEPS)


SCENES: dict[str, Callable[[Any], None]] = {each.__name__: each for each in (turns, salted, adapted, whole, overtaken)}


def play(executor: Executor, name: str) -> dict[str, Any]:
    """Plays a scene and reports what it brought, apart from the scenes before it."""
    calls, corrupt, error = len(executor.calls), len(executor.corrupt()), None
    try:
        SCENES[name](executor)
    except Exception:
        error = traceback.format_exc()
    seen = executor.calls[calls:]
    return {
        "error": error,
        "calls": seen,
        "matched": {call[1]: call[3] for call in seen if call[0] == "match"},
        "corrupt": executor.corrupt()[corrupt:],
    }


def report(executor: Executor, names: list[str]) -> dict[str, Any]:
    scenes = {name: play(executor, name) for name in names}
    if not any(scene["error"] for scene in scenes.values()):
        executor.ask(99, [1, 2, 3], 3)  # who lets go with the next step does it now
        executor.forget()
    registered = next(call for call in executor.calls if call[0] == "register")
    fixes = {name: fix["word"] for name, fix in trtllm_kvfix.status()["fixes"].items()}
    seen = {"scenes": scenes, "held": executor.held(), "pool": registered[1], "fixes": fixes}
    return seen | {"offered_early": executor.offered_early}


def plant() -> None:
    """Plants a careless fix: after each step it asks the connector's worker twice whether it has saved."""
    executor: Any = import_module("tensorrt_llm._torch.pyexecutor.py_executor").PyExecutor
    wait = executor._kv_connector_wait_for_save

    def waits_twice(self: Any) -> None:
        wait(self)
        wait(self)

    executor._kv_connector_wait_for_save = waits_twice


def started(asked: argparse.Namespace, folder: Path) -> AbstractContextManager[Any]:
    client = CLIENTS[asked.client]
    if asked.tree is None:
        one_at_a_time = "overtaken" in asked.scenes
        return running(client, asked.variant, folder, overlay=asked.overlay, one_at_a_time=one_at_a_time)
    from integration.clients import on_upstream  # noqa: PLC0415  it needs torch, which ours does without

    return on_upstream.running(client, asked.tree, asked.variant, folder, overlay=asked.overlay)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("variant")
    parser.add_argument("scenes", nargs="+", choices=SCENES)
    parser.add_argument("--overlay", action="store_true")
    parser.add_argument("--tree", type=Path, help="run on upstream's source instead of the stand-in")
    parser.add_argument("--plant", action="store_true", help="change a call on purpose")
    parser.add_argument("--late", action="store_true", help="hold a client's saves until the request has ended")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        with started(asked, Path(folder)) as executor:
            executor.late_saves = asked.late
            if asked.plant:
                plant()
            sys.stdout.write(json.dumps(report(executor, asked.scenes)) + "\n")
            sys.stdout.flush()
    os._exit(0)  # clients leave threads behind that never end


if __name__ == "__main__":
    main()
