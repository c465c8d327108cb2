"""The pod of examples/kubernetes on this machine: its files, its variables, its entry point and its probes, with the
stand-in for TensorRT-LLM. Ports and folders are of this machine; everything else is as the manifest has it."""

import json
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests import fresh
from tests.overlay.upstream_double import ROOT, environment
from tests.ports import free_ports
from tests.standin.fixture import STANDIN
from trtllm_kvfix.fix_ids import FIX_IDS

EXAMPLES = ROOT / "examples"
SERVE = str(EXAMPLES / "container" / "serve.sh")
ANSWERS = EXAMPLES / "container" / "answers.py"
TRTLLM_SERVE = f'exec {sys.executable} {STANDIN / "bin" / "trtllm-serve"} "$@"'


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def documents() -> dict[str, Any]:
    """The documents of the manifest, by kind."""
    text = (EXAMPLES / "kubernetes" / "server.yaml").read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pod_spec() -> dict[str, Any]:
    return dict(documents()["Deployment"]["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    """The only one of the pod."""
    (found,) = pod_spec()["containers"]
    return dict(found)


def variables_of(server: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in server["env"]}


class Served:
    """A server that is up, as its probes and its operator see it."""

    def __init__(self, container: dict[str, Any], ports: dict[str, int], log: Path, variables: dict[str, str]) -> None:
        self._container = container
        self._ports = ports
        self._log = log
        self._variables = variables

    def get(self, port: str, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[port]}{path}") as response:
            return str(response.read().decode())

    def pass_probes(self) -> None:
        """Those of the manifest. They raise where the kubelet would end the pod."""
        for name in ("startupProbe", "readinessProbe"):
            asked = self._container[name]["httpGet"]
            self.get(asked["port"], asked["path"])
        _, url, limit_s = self._container["livenessProbe"]["exec"]["command"]
        here = url.replace("8000", str(self._ports["http"]))
        answered = fresh.run([sys.executable, ANSWERS, here, limit_s])
        assert answered.returncode == 0, answered.stderr

    def corrupt(self) -> int:
        """Rows that attention has read wrong."""
        return sum(json.loads(self.get("http", "/corrupt")).values())

    def metrics(self) -> str:
        return self.get("fixes", "/metrics")

    def states(self) -> dict[str, str]:
        """What the metrics say of each fix."""
        lines = [line for line in self.metrics().splitlines() if line.startswith("trtllm_kvfix_fix_info{")]
        return {part(line, "fix"): part(line, "state") for line in lines}

    def log(self) -> str:
        return self._log.read_text()

    def status(self) -> dict[str, Any]:
        """`kubectl exec ... trtllm-kvfix status`."""
        asked = [sys.executable, "-m", "trtllm_kvfix", "status", "--json"]
        done = fresh.run(asked, env=self._variables)
        assert done.returncode == 0, done.stderr
        (entry,) = json.loads(done.stdout)
        return dict(entry)


def part(line: str, label: str) -> str:
    return line.partition(f'{label}="')[2].partition('"')[0]


class Pod:
    def __init__(self, folder: Path, variant: str) -> None:
        self.folder = folder
        self.container = container()
        self.variables = variables_of(self.container)
        self.files = dict(documents()["ConfigMap"]["data"])
        self.entry_point = [SERVE]
        self._variant = variant
        self._bin = folder / "bin"
        program(self._bin, "trtllm-kvfix", f'exec {sys.executable} -m trtllm_kvfix "$@"')
        program(self._bin, "trtllm-serve", TRTLLM_SERVE)

    def kubectl(self, line: str) -> None:
        """Do to this pod what the line does to the deployment."""
        words = shlex.split(line, comments=True)
        assert words[:4] == ["kubectl", "set", "env", f"deploy/{documents()['Deployment']['metadata']['name']}"], line
        for word in words[4:]:
            name, equals, value = word.partition("=")
            if equals:
                self.variables[name] = value
            else:
                del self.variables[name.removesuffix("-")]

    def set_up(self) -> tuple[dict[str, str], dict[str, str], list[str], dict[str, str]]:
        """All that a start of it depends on: two pods of one set-up are the same to a server."""
        programs = {file.name: file.read_text() for file in self._bin.iterdir()}
        return dict(self.variables), dict(self.files), [*self.entry_point], programs

    def installs(self, name: str, text: str) -> None:
        program(self._bin, name, text)

    def _here(self, text: str, ports: dict[str, int]) -> str:
        places = {"/etc/trtllm": self.folder / "etc", "/run/trtllm-kvfix": self.folder / "run", "9400": ports["fixes"]}
        for there, here in places.items():
            text = text.replace(there, str(here))
        return text

    def environment(self, ports: dict[str, int]) -> dict[str, str]:
        variables = {name: self._here(value, ports) for name, value in self.variables.items()}
        chosen = {"STANDIN_VARIANT": self._variant, "STANDIN_STEP_PROLOGUE_TRIM": "1"}
        found = environment(STANDIN, **chosen, TLLM_WORKER_USE_SINGLE_PROCESS="1")
        del found["TRTLLM_KVFIX_RUNTIME_DIR"]
        return found | variables | {"PATH": f"{self._bin}:{os.environ['PATH']}"}

    @contextmanager
    def served(self, options: Sequence[str] = ()) -> Iterator[Served]:
        """Start it, and end it as the kubelet does. It is up when it says that it serves."""
        first = free_ports(2)
        ports = {"http": first, "fixes": first + 1}
        for name, text in self.files.items():
            (self.folder / "etc").mkdir(exist_ok=True)
            (self.folder / "etc" / name).write_text(self._here(text, ports))
        given = [self._here(word, ports).replace("8000", str(ports["http"])) for word in self.container["args"]]
        variables, log = self.environment(ports), self.folder / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*self.entry_point, *options, *given],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=variables,
                cwd=self.folder,
            )
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert said == "serving\n", log.read_text()
            yield Served(self.container, ports, log, variables)
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.communicate()


ALL_OFF = dict.fromkeys(FIX_IDS, "off")
