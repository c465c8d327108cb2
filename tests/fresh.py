"""Programs in interpreters of their own, forked from one in which numpy, pydantic and their like are imported: that is
most of what a start costs. Nothing of ours or of upstream's is imported there.

    done = fresh.run([sys.executable, "-c", code, "argument"], cwd=folder, env=variables)

does what `subprocess.run` does with `capture_output` and `text`. Only `-c`, `-m` and scripts are forked; any other
command is started as ever. Tests of the start itself, or of what a start imports, want the real one.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import site
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# pydantic's own and numpy's parts are imported when they are asked for.
IMPORTED = (
    *("asyncio", "concurrent.futures.thread", "importlib.metadata", "unittest.mock", "zipfile"),
    *("click", "click.shell_completion", "numpy", "numpy.random", "numpy.typing", "prometheus_client"),
    *("pydantic", "pydantic.dataclasses", "pydantic.main", "pydantic.root_model", "pydantic.types"),
    *("rich.console", "rich.table", "yaml"),
)
# What an interpreter, a linker or a module reads once, before a program that is forked has its own.
READ_ONCE = ("PYTHON", "LD_", "LC_", "LANG", "OPENBLAS_", "PROMETHEUS_", "PYDANTIC_")
JOB_BYTES_MAX = 1 << 20


def run(
    command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] = os.environ, limit_s: float = 600
) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    if not _can_be_forked(words, env):
        return subprocess.run(words, cwd=cwd, env=env, timeout=limit_s, capture_output=True, text=True, check=False)
    job = {"arguments": words[1:], "cwd": str(cwd or Path.cwd()), "env": dict(env)}
    server = _server()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        socket.send_fds(server, [json.dumps(job).encode()], [out.fileno(), errors.fileno()])
        child = int(server.recv(32))
        server.settimeout(limit_s)
        try:
            status = int(server.recv(32))
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            server.recv(32)
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), errors.read())


def _can_be_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    how = command[0] == sys.executable and (command[1] in ("-c", "-m") or command[1].endswith(".py"))
    return how and _read_once(env) == _read_once(os.environ)


def _read_once(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_ONCE) and name != "PYTHONPATH"}


@cache
def _server() -> socket.socket:
    """One for each process of tests. It ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _wait_for_jobs(client: socket.socket) -> dict[str, Any]:
    """Returns in the children alone, each with a job."""
    at_start = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a shell lets what it starts in the background ignore it
    while True:
        said, ends, _, _ = socket.recv_fds(client, JOB_BYTES_MAX, 2)
        if not said:
            sys.exit()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, at_start)
            client.close()
            for end, number in zip(ends, (1, 2), strict=True):
                os.dup2(end, number)
                os.close(end)
            return dict(json.loads(said))
        for end in ends:
            os.close(end)
        client.send(str(child).encode())
        client.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _run_as_main(how: str, arguments: list[str]) -> None:
    main = sys.modules["__main__"] = ModuleType("__main__")
    if how == "-m":
        sys.argv = ["-m", *arguments[1:]]
        runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]
    elif how == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = [how, *arguments]
        main.__file__ = how
        exec(compile(Path(how).read_bytes(), how, "exec"), vars(main))


def _begin(job: dict[str, Any], usual_path: list[str]) -> None:
    """As the interpreter and `site` begin."""
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    how, *arguments = job["arguments"]
    places = [os.path.abspath(place) for place in job["env"].get("PYTHONPATH", "").split(os.pathsep) if place]  # noqa: PTH100
    first = {"-c": "", "-m": job["cwd"]}
    sys.path[:] = [first[how] if how in first else str(Path(how).resolve().parent), *places, *usual_path]
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()
    try:
        _run_as_main(how, arguments)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    usual_path = sys.path[1:]
    sys.path[:] = usual_path
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads of its own would be lost in a child
    for name in IMPORTED:
        with suppress(ImportError):  # where a program finds it by its own PYTHONPATH, it imports it for itself
            import_module(name)
    gc.freeze()
    _begin(_wait_for_jobs(socket.socket(fileno=int(sys.argv[1]))), usual_path)
