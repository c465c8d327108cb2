"""Tools that replace what we replaced, before an engine starts and while it serves: what we say of a seam is so now."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fresh
from tests.fixes.applied import applied, standing_in
from tests.overlay.upstream_double import environment
from tests.ports import free_ports
from tests.standin.fixture import STANDIN, VARIANTS
from tests.standin.serving import Server
from tests.torture.engines import needed
from trtllm_kvfix.overlay import reach, seam
from trtllm_kvfix.overlay.activation import Activation
from trtllm_kvfix.overlay.registry import Registry

ROOT = Path(__file__).resolve().parents[2]

Tool = Callable[[Any], Any]


def profiler(found: Any) -> Any:
    @functools.wraps(found)
    def timed(*args: Any, **kwargs: Any) -> Any:
        return found(*args, **kwargs)

    return timed


def plugin(found: Any) -> Any:
    """Marked as a wrapper, and none."""

    @functools.wraps(found)
    def patched(*_args: Any, **_kwargs: Any) -> Any:
        return None

    return patched


def seams_of(registry: Registry) -> Iterator[seam.Installed]:
    """Functions that can be replaced in the same way again."""
    for each in registry._installed:
        if callable(reach.plain(each.after)) and not isinstance(each.after, type):
            yield each


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_seam_of_every_fix_is_seen_to_go_and_to_come_back(variant: str) -> None:
    with standing_in(variant), applied(needed(variant)) as registry:
        tried = 0
        for each in seams_of(registry):
            ours = vars(each.owner)[each.name]
            for tool, is_harmless in ((profiler, True), (plugin, False), (lambda _, put=each.original: put, False)):
                theirs = tool(reach.plain(ours))
                if theirs is None:  # upstream had nothing there
                    continue
                setattr(each.owner, each.name, staticmethod(theirs) if isinstance(ours, staticmethod) else theirs)
                report = registry.report()
                assert (str(each.seam) in report.displaced) is not is_harmless, (each.seam, tool)
                assert report.of(each.by).word == ("applied" if is_harmless else "displaced")
                setattr(each.owner, each.name, ours)
            assert registry.report().displaced == {}
            tried += 1
        assert tried >= 2


def test_a_class_at_upstreams_name_that_overrides_the_method_displaces_it() -> None:
    with standing_in("C"), applied(["staged-offsets-v1"]) as registry:
        module = sys.modules["tensorrt_llm._torch.pyexecutor.resource_manager"]
        kind: Any = vars(module)["KVCacheManager"]

        class Inherits(kind):  # type: ignore[misc]
            pass

        class CallsThrough(kind):  # type: ignore[misc]
            def copy_batch_block_offsets(self, *args: Any) -> Any:
                return super().copy_batch_block_offsets(*args)

        class Overrides(kind):  # type: ignore[misc]
            def copy_batch_block_offsets(self, *_: Any) -> Any:
                return None

        for theirs, word in ((Inherits, "applied"), (CallsThrough, "applied"), (Overrides, "displaced")):
            vars_of: Any = module
            vars_of.KVCacheManager = theirs
            assert registry.report().of("staged-offsets-v1").word == word, theirs
        vars_of.KVCacheManager = kind


def test_a_method_of_one_manager_that_serves_is_seen() -> None:
    with standing_in("C"):
        servers: list[Server] = []
        with applied(["staged-offsets-v1"]) as registry:
            servers.append(Server({"max_num_tokens": 48}))
            registry.live = lambda: [each.manager for each in servers]
            manager = servers[0].manager
            manager.copy_batch_block_offsets = lambda *_: None
            (by,) = registry.report().displaced.values()
            assert "test_displaced.<lambda> (" in by and ", on tensorrt_llm." in by
            manager.copy_batch_block_offsets = functools.partial(type(manager).copy_batch_block_offsets, manager)
            assert registry.report().displaced == {}
            del manager.copy_batch_block_offsets
        servers[0].close()


class HostileKind(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Hostile(metaclass=HostileKind):
    """As proxies are that answer only where a request is."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    def __call__(self, *_: Any) -> Any:
        return None


def test_an_object_that_cannot_be_looked_at_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in("C"), applied(["staged-offsets-v1"]) as registry:
        module = sys.modules["tensorrt_llm._torch.pyexecutor.resource_manager"]
        kind: Any = vars(module)["KVCacheManager"]
        active = Activation(registry, ())
        executor = type("Executor", (), {})()
        executor.theirs = Hostile()
        active.engines.add(executor)
        assert registry.report().displaced == {}
        with monkeypatch.context() as patch:
            patch.setattr(kind, "copy_batch_block_offsets", Hostile())
            assert registry.report().of("staged-offsets-v1").word == "displaced"


def test_code_that_was_put_into_ours_displaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in("C"), applied(["staged-offsets-v1"]) as registry:
        (ours,) = (reach.plain(each.after) for each in registry._installed if each.name == "copy_batch_block_offsets")
        free = ours.__code__.co_freevars
        scope: dict[str, Any] = {}
        exec(  # as many variables as ours has
            f"def make({', '.join(free)}):\n def theirs(*_):\n  return None and ({', '.join(free)},)\n return theirs",
            scope,
        )
        with monkeypatch.context() as patch:
            patch.setattr(ours, "__code__", scope["make"](*free).__code__)
            assert registry.report().of("staged-offsets-v1").word == "displaced"
        assert registry.report().of("staged-offsets-v1").word == "applied"


# A server whose seam goes and comes back while it serves. It prints what it says of itself; the test asks `status`.
SERVES = """
import functools, sys, urllib.request
import trtllm_kvfix
from trtllm_kvfix import process
port = int(sys.argv[1])
trtllm_kvfix.enable(metrics_port=port)
process.active._recheck._every_s = 0.02
from tests.standin.serving import Server

server = Server({"max_num_tokens": 48})
kind = type(server.manager)
ours = kind.copy_batch_block_offsets
upstreams = ours.__kvfix_original__
next_id = 1

def put_back(): kind.copy_batch_block_offsets = upstreams
def give_back(): kind.copy_batch_block_offsets = ours
def enable():
    global ours
    trtllm_kvfix.enable(metrics_port=port)
    ours = kind.copy_batch_block_offsets
def wrap():
    @functools.wraps(ours)
    def timed(*args, **kwargs):
        return ours(*args, **kwargs)
    kind.copy_batch_block_offsets = timed

def serve():
    global next_id
    for _ in range(3):
        server.run([server.request(next_id + number, [next_id + number] * 9, 4) for number in range(6)])
        next_id += 6

def said():
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    line = next(line for line in page.splitlines() if 'fix_info{' in line and "staged-offsets-v1" in line)
    fixes = trtllm_kvfix.status()["fixes"]
    return line.partition('state="')[2].partition('"')[0], fixes["staged-offsets-v1"]["word"] if fixes else "disabled"

for command in sys.stdin:
    {
        "put_back": put_back, "give_back": give_back, "wrap": wrap, "nothing": lambda: None,
        "disable": trtllm_kvfix.disable, "enable": enable,
    }[command.strip()]()
    serve()
    print(*said(), flush=True)
server.close()
"""


class Running:
    def __init__(self, folder: Path, variant: str) -> None:
        self._variables = environment(STANDIN, STANDIN_VARIANT=variant) | {"TRTLLM_KVFIX_RUNTIME_DIR": str(folder)}
        self._variables["PYTHONPATH"] += os.pathsep + str(ROOT)
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVES, str(free_ports(1))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._variables,
            cwd=ROOT,
        )

    def does(self, command: str) -> list[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def entries(self) -> list[dict[str, Any]]:
        """As `status` shows them."""
        asked = [sys.executable, "-m", "trtllm_kvfix", "status", "--json"]
        done = fresh.run(asked, env=self._variables)
        return list(json.loads(done.stdout))

    def attested(self, word: str) -> dict[str, Any]:
        """Its entry, once the process has looked again."""
        for _ in range(200):
            (entry,) = self.entries()
            if entry["fixes"]["staged-offsets-v1"] == word:
                return dict(entry)
        raise AssertionError(f"it stays {entry['fixes']}")

    def diagnosed(self) -> list[str]:
        """The problems that `doctor` finds in servers that run."""
        asked = [sys.executable, "-m", "trtllm_kvfix", "doctor", "--json"]
        done = fresh.run(asked, env=self._variables)
        return list(json.loads(done.stdout)["displaced"])

    def end(self) -> str:
        _, errors = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, errors
        return errors


@pytest.mark.parametrize("variant", ["B", "C"])
def test_status_metrics_and_log_follow_a_seam_that_goes_and_comes_back(tmp_path: Path, variant: str) -> None:
    running = Running(tmp_path / "run", variant)
    name = "tensorrt_llm._torch.pyexecutor.resource_manager:KVCacheManager.copy_batch_block_offsets"
    assert running.does("nothing") == ["applied", "applied"]
    assert running.attested("applied")["displaced"] == {}
    assert running.does("wrap") == ["applied", "applied"]
    assert running.does("put_back") == ["displaced", "displaced"]
    entry = running.attested("displaced")
    assert "upstream's own, put back" in entry["displaced"][name] and entry["age_s"] < 60
    (problem,) = running.diagnosed()
    assert f"process {entry['pid']} (rank 0) runs past {name}: calls come to tensorrt_llm." in problem
    assert running.does("give_back") == ["applied", "applied"]
    assert running.attested("applied")["displaced"] == {}
    errors = running.end()
    assert errors.count(f"{name} was replaced by another tool after us: calls come to ") == 1
    assert errors.count(f"{name} is ours again") == 1


def test_fixes_that_are_switched_off_and_on_are_told_as_they_are(tmp_path: Path) -> None:
    running = Running(tmp_path / "run", "C")
    assert running.does("nothing")[1] == "applied"
    assert running.attested("applied")["started"]
    assert running.does("disable")[1] == "disabled"
    assert running.entries() == [], "nothing runs with the fixes"
    assert running.does("enable")[1] == "applied"
    assert running.attested("applied")["started"], "the engine still runs"
    assert running.does("put_back")[1] == "displaced"
    running.attested("displaced")
    assert running.does("give_back")[1] == "applied"
    running.end()


LATE = """
import trtllm_kvfix
from tests.standin.serving import Server
from trtllm_kvfix import process

process.active._recheck._every_s = 0.02
server = Server({"max_num_tokens": 48})
trtllm_kvfix.enable()
kind = type(server.manager)
server.manager.copy_batch_block_offsets = lambda *_: None
print(trtllm_kvfix.status()["fixes"]["staged-offsets-v1"]["word"], process.active.started)
del server.manager.copy_batch_block_offsets
print(trtllm_kvfix.status()["fixes"]["staged-offsets-v1"]["word"])
server.close()
"""


def test_an_engine_that_was_there_before_the_fixes_is_looked_at(tmp_path: Path) -> None:
    variables = environment(STANDIN, STANDIN_VARIANT="C") | {"TRTLLM_KVFIX_RUNTIME_DIR": str(tmp_path / "run")}
    variables["PYTHONPATH"] += os.pathsep + str(ROOT)
    done = fresh.run([sys.executable, "-c", LATE], cwd=ROOT, env=variables)
    assert done.stdout.split() == ["displaced", "True", "applied"], done.stderr


NOWHERE = """
import tempfile
import trtllm_kvfix
from trtllm_kvfix import process

def nowhere():
    raise FileNotFoundError(2, "No usable temporary directory found")

tempfile.gettempdir = nowhere
trtllm_kvfix.enable()
from tests.standin.serving import Server

server = Server({"max_num_tokens": 48})
answers = server.serve(server.workload(4))
process.active._look_again()
print(len(answers), trtllm_kvfix.status()["fixes"]["staged-offsets-v1"]["word"])
"""


def test_a_server_starts_where_nothing_can_be_written() -> None:
    variables = environment(STANDIN, STANDIN_VARIANT="C")
    variables["PYTHONPATH"] += os.pathsep + str(ROOT)
    del variables["TRTLLM_KVFIX_RUNTIME_DIR"]
    done = fresh.run([sys.executable, "-c", NOWHERE], cwd=ROOT, env=variables)
    assert done.stdout.split() == ["4", "applied"], done.stderr
    assert done.stderr.count("there is no folder for what processes write down") == 2, "attestation, flight record"
