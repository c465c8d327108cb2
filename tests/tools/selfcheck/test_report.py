"""The report may be shared, and the command writes it."""

import getpass
import json
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import fresh
from tests.overlay.upstream_double import ROOT, environment
from tests.standin.fixture import STANDIN
from trtllm_kvfix import cli
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.tools.selfcheck.report import anonymous

NOTHING_PRIVATE = "128 of 192 tokens, KVCacheManager.copy_batch, and/or"


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("cannot open /data/somebody/models/a now", "cannot open …/a now"),
        ("File '/opt/trt/lib/libfoo.so': no", "File '…/libfoo.so': no"),
        (f"connect to {socket.gethostname()}:50051", "connect to HOST:50051"),
        (f"user {getpass.getuser()} may not", "user USER may not"),
        (
            "128 of 192 tokens, KVCacheManager.copy_batch, and/or",
            "128 of 192 tokens, KVCacheManager.copy_batch, and/or",
        ),
    ],
)
def test_paths_and_names_are_left_out(text: str, shared: str) -> None:
    assert anonymous(text) == shared


def test_without_a_gpu_the_command_says_what_it_could_not_show(tmp_path: Path) -> None:
    environ = environment(tmp_path, STANDIN_VARIANT="B") | {"PYTHONPATH": f"{STANDIN}:{ROOT}"}
    command = [sys.executable, "-m", "trtllm_kvfix", "selfcheck", "--out", "seen.json"]
    done = fresh.run(command, cwd=tmp_path, env=environ)
    assert done.returncode == 1, done.stderr
    written = (tmp_path / "seen.json").read_text()
    found = json.loads(written)
    assert [each["id"] for each in found["fixes"]] == [fix.id for fix in ALL]
    assert {each["self_test"] for each in found["fixes"]} == {"right"}
    needed = {fix["id"] for fix in found["fixes"] if fix["state"] == "needed"}
    shown = [each for each in found["scenarios"] if each["fix"] in needed]
    (lacking,) = {each["why"].removeprefix("off: ") for each in shown}
    assert lacking in ("torch is not installed", "torch finds no CUDA GPU")
    assert {each["verdict"] for each in shown} == {"unproven"}
    rest = [each for each in found["scenarios"] if each["fix"] not in needed]
    assert {each["verdict"] for each in rest} == {"skipped"}
    assert all(each["why"].endswith(f"not tested without it: {lacking}") for each in rest)
    assert len(found["problems"]) == len(shown)
    for name in (str(tmp_path), str(ROOT), socket.gethostname()):
        assert name not in written
    assert "offsets-v1" in done.stdout and "seen.json" in done.stderr


def test_a_report_that_cannot_be_written_hides_no_result(tmp_path: Path) -> None:
    environ = environment(tmp_path, STANDIN_VARIANT="B") | {"PYTHONPATH": f"{STANDIN}:{ROOT}"}
    command = [sys.executable, "-m", "trtllm_kvfix", "selfcheck", "--out"]
    full, nowhere = (
        fresh.run([*command, out], cwd=tmp_path, env=environ) for out in ("/dev/full", "nowhere/seen.json")
    )
    assert (full.returncode, nowhere.returncode) == (2, 2)
    assert full.stderr == "Error: --out is '/dev/full': it cannot be written: No space left on device\n"
    assert "offsets-v1" in full.stdout
    assert nowhere.stderr == "Error: --out is 'nowhere/seen.json': there is no folder nowhere\n"


def test_fixes_of_the_process_do_not_reach_the_control_arm(tmp_path: Path) -> None:
    """Below `run` the child's Python has the hook."""
    environ = environment(tmp_path, STANDIN_VARIANT="B") | {"PYTHONPATH": f"{STANDIN}:{ROOT}"}
    script = (
        "import os, sys\n"
        "from multiprocessing.connection import Connection\n"
        "from tests.tools.selfcheck.child import StandInGround, main\n"
        "reading, writing = os.pipe()\n"
        "main([str(writing), 'import', 'offsets-v1:off'], StandInGround)\n"
        "outcomes = Connection(reading, writable=False)\n"
        "sys.stdout.write([outcomes.recv() for _ in range(2)][-1][0])\n"
    )
    launcher = [sys.executable, "-m", "trtllm_kvfix", "run", "--", sys.executable, "-c", script]
    done = fresh.run(launcher, cwd=tmp_path, env=environ)
    assert done.stdout == "wrong", done.stderr


def test_without_tensorrt_llm_there_is_nothing_to_check(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["selfcheck", "--out", str(tmp_path / "seen.json")])
    assert result.exit_code == 1 and "run selfcheck with the Python of the server" in result.output
    assert not (tmp_path / "seen.json").exists()
