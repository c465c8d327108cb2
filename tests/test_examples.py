"""The scripts of examples/, as they are, with the stand-in for TensorRT-LLM."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import fresh
from tests.overlay.upstream_double import environment
from tests.pod import EXAMPLES, SERVE, TRTLLM_SERVE, container, documents, pod_spec, program, variables_of
from tests.standin.fixture import STANDIN
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.settings import load

CONFIG = "kvfix: {fixes: {token-budget: observe}}\n"
DYNAMO = """
import json, sys
from tensorrt_llm.llmapi.llm import LLM
llm = LLM(model=sys.argv[sys.argv.index("--model-path") + 1])
print(json.dumps([report.error for report in llm.generate([[1, 2, 3]], max_tokens=2)]))
llm.shutdown()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the programs that an image has in its PATH."""
    bin_folder = tmp_path / "bin"
    program(bin_folder, "python3", f'exec {sys.executable} "$@"')
    program(bin_folder, "trtllm-kvfix", f'exec {sys.executable} -m trtllm_kvfix "$@"')
    program(bin_folder, "trtllm-serve", TRTLLM_SERVE)
    (tmp_path / "server.yaml").write_text(CONFIG)
    return bin_folder


def run(installed: Path, *command: str | Path, variant: str = "B", **more: str) -> subprocess.CompletedProcess[str]:
    folder = installed.parent
    more = {"TRTLLM_KVFIX_RUNTIME_DIR": str(folder / "run")} | more
    environ = environment(STANDIN, STANDIN_VARIANT=variant, TLLM_WORKER_USE_SINGLE_PROCESS="1", **more)
    environ["PATH"] = f"{installed}:{os.environ['PATH']}"
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environ)


def test_entry_point_serves_with_the_fixes(installed: Path) -> None:
    plain = run(installed, "trtllm-serve", "model", "--config", "server.yaml")
    assert plain.returncode != 0  # the section is ours, and without the hook nobody takes it out
    done = run(installed, SERVE, "trtllm-serve", "model", "--config", "server.yaml")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["error"] is None
    assert "applied: staged-offsets-v1" in done.stderr


def test_entry_point_goes_by_way_of_the_image_s_own(installed: Path) -> None:
    own = program(installed, "nvidia_entrypoint.sh", 'echo "set up" >&2; exec "$@"')
    command = (SERVE, "trtllm-serve", "model", "--config", "server.yaml")
    done = run(installed, *command, KVFIX_IMAGE_ENTRYPOINT=str(own))
    assert (done.returncode, "set up" in done.stderr) == (0, True), done.stderr
    assert json.loads(done.stdout)["error"] is None


def test_strict_entry_point_starts_what_is_mended(installed: Path) -> None:
    done = run(installed, SERVE, "trtllm-serve", "model", KVFIX_STRICT="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["error"] is None


@pytest.mark.parametrize(("strict", "code"), [("0", 0), ("1", 1)])
def test_strict_entry_point_starts_nothing_with_a_fix_that_cannot_be_told(
    installed: Path, strict: str, code: int
) -> None:
    done = run(installed, SERVE, "trtllm-serve", "model", variant="mangled", KVFIX_STRICT=strict)
    assert (done.returncode, done.stdout == "") == (code, strict == "1"), done.stderr
    assert ("Error: --strict: nothing is started" in done.stderr) == (strict == "1")


@pytest.mark.parametrize("option", ["--config=", "--config ", "--extra_llm_api_options "])
def test_strict_entry_point_reads_the_server_s_file(installed: Path, option: str) -> None:
    """Where somebody has switched those fixes off, that is a decision."""
    off = ", ".join(f"{each}: off" for each in FIX_IDS)
    (installed.parent / "server.yaml").write_text(f"kvfix: {{fixes: {{{off}}}}}\n")
    command = ("trtllm-serve", "model", *f"{option}server.yaml".split())
    done = run(installed, SERVE, *command, variant="mangled", KVFIX_STRICT="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["error"] is None


def test_strict_entry_point_starts_nothing_that_may_lose_the_hook(installed: Path) -> None:
    launch = program(installed, "launch.sh", "PYTHONPATH=/opt/mine exec trtllm-serve model")
    lenient = run(installed, SERVE, launch)
    assert "launch.sh, line 2: `PYTHONPATH=/opt/mine` takes away PYTHONPATH" in lenient.stderr
    assert "If it is the server's, it starts WITHOUT the fixes" in lenient.stderr
    done = run(installed, SERVE, launch, KVFIX_STRICT="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: --strict: " in done.stderr and "launch.sh, line 2" in done.stderr
    done = run(installed, SERVE, "env", "PYTHONPATH=/opt/mine", "trtllm-serve", "model")
    assert (done.returncode, done.stdout) == (2, ""), "no launch script is needed to see that"


def test_strictness_that_is_neither_1_nor_0_is_refused(installed: Path) -> None:
    done = run(installed, SERVE, "trtllm-serve", "model", KVFIX_STRICT="true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "KVFIX_STRICT is 'true'; write 1" in done.stderr


def test_strict_entry_point_starts_with_a_file_that_has_no_section(installed: Path) -> None:
    (installed.parent / "server.yaml").write_text("kv_cache_config: {enable_block_reuse: true}\n")
    done = run(installed, SERVE, "trtllm-serve", "model", "--config", "server.yaml", KVFIX_STRICT="1")
    assert done.returncode == 0, done.stderr


def test_entry_point_without_a_command_says_what_it_wants(installed: Path) -> None:
    done = run(installed, SERVE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "wants the command to run" in done.stderr


def test_dynamo_worker_has_the_fixes_or_none(installed: Path) -> None:
    package = installed.parent / "dynamo" / "trtllm"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(DYNAMO)
    command = (EXAMPLES / "dynamo" / "worker.sh", "--model-path", "model")
    for off, says in ("", "applied: staged-offsets-v1"), ("false", "rank 0 of 1 runs WITHOUT the fixes"):
        done = run(installed, *command, TRTLLM_KVFIX_ENABLED=off)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [None]
        assert says in done.stderr


def of_the_unit(installed: Path, key: str) -> list[str]:
    """A command of the unit, with its programs and its configuration here."""
    unit = (EXAMPLES / "systemd" / "trtllm-kvfix.service").read_text()
    line = next(line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{key}="))
    places = {"/opt/trtllm/bin": str(installed), "${MODEL}": "model", "/etc/trtllm-kvfix": str(installed.parent)}
    for there, here in places.items():
        line = line.replace(there, here)
    return line.split()


def test_the_command_of_the_unit_runs_what_is_mended_and_nothing_else(installed: Path) -> None:
    command = of_the_unit(installed, "ExecStart")
    done = run(installed, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(installed, *command, variant="mangled").returncode == 1
    done = run(installed, *command, variant="mangled", TRTLLM_KVFIX_ENABLED="false")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_unit_is_one_that_systemd_takes(installed: Path) -> None:
    """Uses the unit's programs if they are installed here, because systemd looks for them."""
    unit = (EXAMPLES / "systemd" / "trtllm-kvfix.service").read_text().replace("/opt/trtllm/bin", str(installed))
    file = installed.parent / "trtllm-kvfix.service"
    file.write_text(unit)
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (done.returncode, file.name in done.stderr) == (0, False), done.stderr
    file.write_text(unit.replace("LimitMEMLOCK=", "LimitMEMLOK="))
    wrong = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert "LimitMEMLOK" in wrong.stderr


def test_configurations_are_valid() -> None:
    """Those of the fixes are in files of their own: without `run`, TensorRT-LLM refuses what it does not know."""
    of_kubernetes = documents()["ConfigMap"]["data"]
    name = "TRTLLM_KVFIX_METRICS_PORT"
    port = {name: variables_of(container())[name]}
    for text, environ in (((EXAMPLES / "kvfix.yaml").read_text(), {}), (of_kubernetes["kvfix.yaml"], port)):
        assert load(environ=environ, section=yaml.safe_load(text)["kvfix"]).metrics_port == 9400
    for text in ((EXAMPLES / "server.yaml").read_text(), of_kubernetes["server.yaml"]):
        assert "kvfix" not in yaml.safe_load(text)


def test_manifest_names_what_the_image_holds() -> None:
    """Ports by name, the configuration's port of metrics, and the probe where the Dockerfile puts it."""
    server = container()
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    assert ports == {"http": 8000, "fixes": 9400}
    assert {each["targetPort"] for each in documents()["Service"]["spec"]["ports"]} == ports.keys()
    dockerfile = (EXAMPLES / "container" / "Dockerfile").read_text()
    probe = server["livenessProbe"]["exec"]["command"][0]
    assert f"container/serve.sh examples/container/{Path(probe).name} {Path(probe).parent}/" in dockerfile
    assert ("container/serve.sh" in dockerfile, f'ENTRYPOINT ["{Path(probe).parent}/serve.sh"]' in dockerfile) == (
        True,
        True,
    )


class Server(ThreadingHTTPServer):
    """Answers like trtllm-serve, or like one whose executor is dead: it lists models, and tokens never come."""

    daemon_threads = True

    def __init__(self, completion: str | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.completion = completion
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.answer('{"data": [{"id": "model"}]}' if self.path == "/v1/models" else "")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (self.path, asked["model"], asked["max_tokens"]) == ("/v1/completions", "model", 1)
        if self.server.completion is None:
            self.server.released.wait()
        else:
            self.answer(self.server.completion)

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because the test says what happened."""


@pytest.mark.parametrize(
    ("completion", "code"), [('{"choices": [{"text": "2"}]}', 0), ('{"choices": []}', 1), ("no JSON", 1), (None, 1)]
)
def test_probe_wants_a_token_and_not_health(completion: str | None, code: int) -> None:
    with Server(completion) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command: list[str | Path] = [sys.executable, EXAMPLES / "container" / "answers.py", server.url]
        command += ["60" if completion else "2"]
        done = fresh.run(command)
        server.released.set()
        server.shutdown()
    assert (done.returncode, done.stderr == "") == (code, code == 0), done.stderr


@pytest.mark.parametrize("reply", [b"none of HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
def test_probe_says_in_one_line_what_is_no_answer(reply: bytes) -> None:
    """Another program may have the port, and a server that dies leaves half an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        done = fresh.run([sys.executable, EXAMPLES / "container" / "answers.py", url, "60"])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"no answer from {url}")


@pytest.mark.parametrize("completion", ["[]", "7"])
def test_probe_says_in_one_line_what_is_no_completion(completion: str) -> None:
    with Server(completion) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = fresh.run([sys.executable, EXAMPLES / "container" / "answers.py", server.url, "60"])
        server.shutdown()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr


def test_probe_says_where_nobody_listens() -> None:
    command: list[str | Path] = [sys.executable, EXAMPLES / "container" / "answers.py", "http://127.0.0.1:1", "2"]
    done = fresh.run(command)
    assert (done.returncode, "no answer from http://127.0.0.1:1" in done.stderr) == (1, True)


def test_a_pod_s_volume_holds_the_folder_of_the_server(installed: Path) -> None:
    """The kubelet makes an emptyDir that everybody may write in."""
    server = container()
    told = variables_of(server)["TRTLLM_KVFIX_RUNTIME_DIR"]
    (mount,) = [each for each in server["volumeMounts"] if Path(told).is_relative_to(each["mountPath"])]
    assert {"name": mount["name"], "emptyDir": {}} in pod_spec()["volumes"]
    volume = installed.parent / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    folder = volume / Path(told).relative_to(mount["mountPath"])
    done = run(installed, SERVE, "trtllm-serve", "model", TRTLLM_KVFIX_RUNTIME_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    assert "others may write" not in done.stderr
