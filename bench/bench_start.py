"""Measures what the hook costs an interpreter at its start, where no TensorRT-LLM is imported.

Processor time inside fresh interpreters: `line` is the one line of the persistent hook, `run` the import of what stands
first on the path below `trtllm-kvfix run`, which registers the same finder and looks for the `sitecustomize` that it
hides. Without bytecode is where Python may write none and none was installed. `modules` is how many modules come in. An
editable installation adds a finder of its own, so site-packages are left out.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import RESULTS, Row, Summary, report

from trtllm_kvfix.overlay.hook_file import LINE
from trtllm_kvfix.overlay.hook_loss import BOOTSTRAP

ROOT = Path(__file__).resolve().parents[1]
ON_THE_PATH = f"sys.modules.pop('sitecustomize', None); sys.path.insert(0, {str(BOOTSTRAP)!r}); import sitecustomize"
WAYS = {"line": LINE, "run": ON_THE_PATH}
TIMED = """
import json, os, sys, time  # os as site imports it
before = set(sys.modules)
code = compile({code!r}, "hook", "exec")
begin = time.process_time_ns()
exec(code)
took_us = (time.process_time_ns() - begin) / 1e3
print(json.dumps([took_us, len(set(sys.modules) - before)]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="fresh interpreters for each row")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="10 interpreters for each row")
    arguments = parser.parse_args()
    report("start.csv", measured(10 if arguments.quick else arguments.rounds), arguments.results)


def measured(rounds: int) -> Iterator[Row]:
    for way, code in WAYS.items():
        for bytecode in (True, False):
            with TemporaryDirectory() as folder:
                started = [start(code, folder, bytecode) for _ in range(rounds + bytecode)][bytecode:]
            name = f"hook {way}, {'' if bytecode else 'no '}bytecode"
            yield Row(name, 0, "trtllm-kvfix", "cpu_us", Summary.of([took_us for took_us, _ in started]))
            yield Row(name, 0, "trtllm-kvfix", "modules", Summary.of([modules for _, modules in started]))


def start(code: str, folder: str, bytecode: bool) -> tuple[float, float]:
    """Bytecode is kept in `folder`, which the first interpreter fills: that one is not counted."""
    environ = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": folder}
    if not bytecode:
        environ["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-S", "-c", TIMED.format(code=code)]
    took_us, modules = json.loads(subprocess.check_output(command, env=environ, cwd=os.sep))
    return took_us, modules


if __name__ == "__main__":
    main()
