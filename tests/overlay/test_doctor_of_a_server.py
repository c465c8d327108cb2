"""`doctor -- COMMAND`: the settings are those that the server would have, and the server is not started."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import fresh
from tests.overlay.entries import attestation
from tests.overlay.upstream_double import environment
from tests.standin.fixture import STANDIN
from trtllm_kvfix.overlay import attest

COMMAND = (sys.executable, "-m", "trtllm_kvfix")
V1 = "staged-offsets-v1"
OFF = "kvfix: {fixes: {staged-offsets-v1: off}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    server = tmp_path / "serve"
    server.write_text("#!/bin/sh\ntouch started\n")
    server.chmod(0o755)
    return tmp_path


def doctor(
    folder: Path, *arguments: str, under: tuple[str, ...] = ("run", "--"), **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = environment(STANDIN, STANDIN_VARIANT="B", **variables)
    command = [*COMMAND, *under, *(COMMAND if under else ()), *arguments]
    done = fresh.run(command, cwd=folder, env=environ)
    assert not (folder / "started").exists()
    return done


def choice_of(done: subprocess.CompletedProcess[str]) -> Any:
    return {each["id"]: each["choice"] for each in json.loads(done.stdout)["overlay"]["fixes"]}[V1]


@pytest.mark.parametrize("how", [["--config", "server.yaml"], ["--extra_llm_api_options=server.yaml"], ["server.yaml"]])
def test_a_fix_that_the_server_s_file_switches_off_is_told(folder: Path, how: list[str]) -> None:
    (folder / "server.yaml").write_text(OFF)
    assert doctor(folder, "doctor").returncode == 0
    done = doctor(folder, "doctor", "--json", "--", "./serve", *how)
    assert (done.returncode, choice_of(done)) == (0, "off"), done.stderr
    (told,) = json.loads(done.stdout)["overlay"]["switched_off"]
    assert told.startswith(f"fix {V1} is needed") and told.endswith(f"kvfix.fixes.{V1} is off")


def test_the_environment_and_options_of_run_override_the_file(folder: Path) -> None:
    (folder / "server.yaml").write_text(OFF)
    asked = ("doctor", "--json", "--", "./serve", "--config", "server.yaml")
    assert choice_of(doctor(folder, *asked, TRTLLM_KVFIX_FIXES_STAGED_OFFSETS_V1="on")) == "on"
    done = doctor(folder, *asked, under=("run", "--fix", f"{V1}=on", "--"))
    assert (done.returncode, choice_of(done)) == (0, "on"), done.stderr


def test_the_file_of_doctor_s_own_option_overrides_the_server_s_as_that_of_run_does(folder: Path) -> None:
    (folder / "ours.yaml").write_text(f"kvfix: {{fixes: {{{V1}: on}}}}")
    (folder / "server.yaml").write_text(OFF)
    done = doctor(folder, "--config", "ours.yaml", "doctor", "--json", "./serve", "--config", "server.yaml")
    assert choice_of(done) == "on", done.stderr


def test_a_file_that_switches_all_fixes_off_counts_below_run(folder: Path) -> None:
    (folder / "server.yaml").write_text("kvfix: {enabled: false}")
    done = doctor(folder, "doctor", "--json", "--", "./serve", "--config", "server.yaml")
    assert (done.returncode, json.loads(done.stdout)["overlay"]["hook"]) == (0, "off"), done.stderr


def test_a_server_that_runs_is_no_matter_of_another_that_is_to_start(folder: Path) -> None:
    attest.write(folder / "run", replace(attestation(), displaced={"a:b": "another tool"}))
    done = doctor(folder, "doctor", "--json", TRTLLM_KVFIX_RUNTIME_DIR=str(folder / "run"))
    (problem,) = json.loads(done.stdout)["problems"]
    assert (done.returncode, "runs past a:b" in problem) == (1, True)
    done = doctor(folder, "doctor", "--", "./serve", TRTLLM_KVFIX_RUNTIME_DIR=str(folder / "run"))
    assert done.returncode == 0, done.stdout


def test_a_tree_is_examined_for_a_server_that_is_elsewhere(folder: Path) -> None:
    (folder / "server.yaml").write_text(OFF)
    asked = ("doctor", "--json", "--source", str(STANDIN), "--", "trtllm-elsewhere", "--config", "server.yaml")
    done = doctor(folder, *asked, under=())
    assert choice_of(done) == "off", done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ["trtllm-serve", "MODEL", "--config", "nope.yaml"],
            "--config is nope.yaml, which does not exist (the folder is ",
        ),
        (["trtllm-serve", "MODEL", "--config=nope"], "--config is nope, which does not exist"),
        (["./serve", "--extra_llm_api_options", "/no/such.yml"], "--extra_llm_api_options is /no/such.yml, which does"),
        (["./serve", "--extra-engine-args", "nope.yaml"], "--extra-engine-args is nope.yaml, which does not exist"),
        (["./serve", "--config", "torn.yaml"], "--config is torn.yaml, which cannot be read"),
    ],
)
@pytest.mark.parametrize("elsewhere", [(), ("--source", str(STANDIN))], ids=["here", "source"])
def test_a_file_that_is_not_there_is_refused_as_one_that_cannot_be_read(
    folder: Path, command: list[str], says: str, elsewhere: tuple[str, ...]
) -> None:
    """The verdict would be of a server without it."""
    (folder / "torn.yaml").write_text("kv_cache_config: {")
    path = f"{STANDIN / 'bin'}:{os.environ['PATH']}"
    done = doctor(folder, "doctor", *elsewhere, "--", *command, under=(), PATH=path)
    assert (done.returncode, done.stdout, says in done.stderr) == (2, "", True), done.stderr


@pytest.mark.parametrize("command", [["./serve", "--config", "production"], ["./serve", "--out", "made.yaml"]])
def test_what_need_not_be_the_server_s_file_need_not_be_there(folder: Path, command: list[str]) -> None:
    assert doctor(folder, "doctor", "--", *command).returncode == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["./serve", "--config", "server.yaml"], "unknown setting kvfix.fixs in server.yaml"),
        (["server"], "command 'server' is not found in PATH"),
        ([sys.executable, "-S", "server.py"], "reads no site-packages"),
    ],
)
def test_a_command_that_run_would_refuse_is_bad_usage(folder: Path, command: list[str], says: str) -> None:
    (folder / "server.yaml").write_text("kvfix: {fixs: {}}")
    done = doctor(folder, "doctor", "--", *command, under=())
    assert (done.returncode, done.stdout, says in done.stderr) == (2, "", True), done.stderr
