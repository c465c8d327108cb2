"""`run` reads the server's own YAML before anything starts, and `--dry-run` starts nothing."""

import sys
from pathlib import Path

import pytest

from tests.overlay.test_launch import run

PYTHON = sys.executable
SERVER = {
    "kvfix: {fixs: {token-budget: off}}": "unknown setting kvfix.fixs.token-budget in server.yaml; did you mean",
    "kvfix: {fixes: {token-budget: maybe}}": "server.yaml: kvfix.fixes.token-budget is 'maybe': ",
    "kvfix: {fixes: {nixl-listener: observe}}": "server.yaml: kvfix.fixes.nixl-listener is 'observe': this fix cannot",
    "kvfix: {metrics_port: 99999}": "server.yaml: kvfix.metrics_port is 99999: ",
    'kvfix: {enabled: "false"}': "server.yaml: kvfix.enabled is 'false': ",
    "kvfix: on": "`kvfix:` in server.yaml is True; settings belong below it",
    "kvfix: {force: true}\nkvfix: {force: true}": "server.yaml has kvfix more than once",
    "kvfix: [": "--config is server.yaml, which cannot be read: line 1, column 9: ",
}


def test_dry_run_says_what_would_be_set_and_started_and_starts_nothing(small: Path) -> None:
    done = run(small, "run", "--dry-run", "--fix", "token-budget=off", "--", PYTHON, "-c", "print('a  b')")
    *variables, line = done.stdout.splitlines()
    assert line == f"{PYTHON} -c 'print('\"'\"'a  b'\"'\"')'"
    named = dict(variable.partition("=")[::2] for variable in variables)
    assert named["TRTLLM_KVFIX_FIXES_TOKEN_BUDGET"] == "off"
    assert {"PYTHONPATH", "TRTLLM_KVFIX_ENABLED", "TRTLLM_KVFIX_JOB"} <= set(named)


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "start"])
@pytest.mark.parametrize(("text", "message"), SERVER.items())
def test_bad_settings_in_the_server_s_file_are_refused_before_it_starts(
    small: Path, dry: list[str], text: str, message: str
) -> None:
    (small / "server.yaml").write_text(text)
    done = run(small, "run", *dry, "--", "sh", "-c", "echo started", "--config", "server.yaml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


@pytest.mark.parametrize("how", [["--config", "settings"], ["--config=settings"], ["--extra_llm_api_options=settings"]])
def test_the_server_s_file_may_have_any_name_behind_its_option(small: Path, how: list[str]) -> None:
    (small / "settings").write_text("kvfix: {fixs: 1}")
    done = run(small, "run", "--dry-run", "--", "sh", *how)
    assert (done.returncode, "unknown setting kvfix.fixs in settings" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kvfix: {metrics_port: 9400}", "`kvfix:` in server.yaml is valid\n"),
        ("kvfix: {enabled: false}", "`kvfix:` in server.yaml is valid: the server starts WITHOUT the fixes\n"),
        ("backend: pytorch", ""),
    ],
)
def test_dry_run_says_that_it_read_the_server_s_file(small: Path, text: str, says: str) -> None:
    (small / "server.yaml").write_text(text)
    done = run(small, "run", "--dry-run", "--", "sh", "--config", "server.yaml", "missing.yaml")
    assert (done.returncode, done.stderr) == (0, says)


def test_a_file_that_is_only_called_yaml_is_the_command_s_own(small: Path) -> None:
    (small / "chart.yaml").write_text("{{ template }}: [")
    assert run(small, "run", "--", "sh", "-c", "echo $0", "chart.yaml").stdout == "chart.yaml\n"


def test_a_misspelt_option_of_run_is_not_taken_for_the_command(small: Path) -> None:
    done = run(small, "run", "--dryrun", "--", "true")
    assert done.returncode == 2
    assert "No such option" in done.stderr and "--dry-run" in done.stderr
