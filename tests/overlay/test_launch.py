"""`trtllm-kvfix run`: what the command gets, and which commands are refused because the fixes would not reach them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh
from tests.overlay.upstream_double import EXECUTOR, environment, python
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay import hook_loss, launch
from trtllm_kvfix.settings import Settings, load

PYTHON = sys.executable
SHOW = f"import json; from {EXECUTOR} import py_executor; print(json.dumps(py_executor.record()))"
ON, OFF = ["ours", "upstream", "ours"], ["upstream", "upstream"]


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The double of upstream's fixes stand in for ours by way of a `sitecustomize`, which ours must run as well."""
    (folder / "sitecustomize.py").write_text("import small_fixes\n")
    return fresh.run([PYTHON, "-m", "trtllm_kvfix", *arguments], cwd=folder, env=environment(folder, **variables))


def executable(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("how", ["-c", "-m", "script", "console script", "shell", "subprocess"])
def test_every_way_to_start_python_has_the_fixes(small: Path, how: str) -> None:
    (small / "module.py").write_text(SHOW)
    command = {
        "-c": [PYTHON, "-c", SHOW],
        "-m": [PYTHON, "-m", "module"],
        "script": [PYTHON, str(small / "module.py")],
        "console script": [str(executable(small / "trtllm-small", f"#!{PYTHON}\n{SHOW}\n"))],
        "shell": ["sh", "-c", f"{PYTHON} -m module"],
        "subprocess": [PYTHON, "-c", f"import subprocess; subprocess.run([{PYTHON!r}, '-m', 'module'], check=True)"],
    }[how]
    done = run(small, "run", "--", *command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ON
    assert json.loads(subprocess.check_output(command, cwd=small, env=environment(small), text=True)) == OFF


def test_run_becomes_the_command(small: Path) -> None:
    """Signals and exit codes are the command's own, because there is no process in between."""
    parent = subprocess.Popen(
        [PYTHON, "-m", "trtllm_kvfix", "run", "--", PYTHON, "-c", "import os; print(os.getpid()); os._exit(7)"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=small,
        env=environment(small),
    )
    output, _ = parent.communicate()
    assert (int(output), parent.returncode) == (parent.pid, 7)


def test_the_command_has_the_signals_that_it_would_have_without_run(small: Path) -> None:
    """Python ignores SIGPIPE and SIGXFSZ; a pipeline whose reader goes away must end by the signal, not with 1."""
    ignored = "awk '/SigIgn/ {print $2}' /proc/self/status"
    plain = subprocess.run(["sh", "-c", ignored], capture_output=True, text=True, check=True, cwd=small)
    assert run(small, "run", "--", "sh", "-c", ignored).stdout == plain.stdout
    piped = f"{PYTHON} -m trtllm_kvfix run -- sh -c 'while echo y; do :; done' | head -1; echo ${{PIPESTATUS[0]}}"
    done = fresh.run(["bash", "-c", piped], cwd=small, env=environment(small))
    assert done.stdout.split() == ["y", "141"]


def test_a_script_without_a_first_line_is_an_error_and_no_traceback(small: Path) -> None:
    script = executable(small / "serve", "echo never\n")
    done = run(small, "run", "--", str(script))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: command {str(script)!r} cannot be run: Exec format error")


def test_command_may_have_options_of_the_same_names(small: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    done = run(small, "run", PYTHON, "-c", code, "--config", "x", "--force", "--", "--help")
    assert done.stdout.strip() == "['--config', 'x', '--force', '--', '--help']"


def test_options_come_before_variables_and_variables_before_the_file(small: Path) -> None:
    file = small / "settings.yaml"
    file.write_text(
        "model: m\nkvfix: {metrics_port: 1, tuning: {staging_slots: 4}, fixes: {token-budget: off, nixl-listener: off}}"
    )
    show = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('TRTLLM_KVFIX')}))"
    for options in (
        ["--config", str(file), "run", "--fix", "token-budget=on", "--"],
        ["run", "--config", str(file), "--fix", "token-budget=on", "--"],
        ["run", "--fix", "token-budget=on", "--manager", "native", "--canary", "--"],
    ):
        variables = {"TRTLLM_KVFIX_METRICS_PORT": "2", "TRTLLM_KVFIX_FIXES_TOKEN_BUDGET": "auto"}
        if str(file) not in options:
            variables["TRTLLM_KVFIX_CONFIG"] = str(file)
        done = run(small, *options, PYTHON, "-c", show, **variables)
        seen = json.loads(done.stdout)
        settings = load(environ=seen)
        assert settings.fixes.of("token-budget") == "on"
        assert settings.fixes.of("nixl-listener") == "off"
        assert (settings.metrics_port, settings.tuning.staging_slots, settings.enabled) == (2, 4, True)
        assert settings.canary == ("observe" if "--canary" in options else "off")
        assert "TRTLLM_KVFIX_CONFIG" not in seen
        assert seen["TRTLLM_KVFIX_JOB"].startswith(os.uname().nodename)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "no-such-command"], "'no-such-command' is not found in PATH; usual cause: it is installed in another"),
        (["--", "./no-such-command"], "'./no-such-command' does not exist (the folder is /"),
        (["--", "/tmp"], "command '/tmp' is a folder"),
        (["--", f"./{300 * 'x'}"], "x' cannot be found: File name too long"),
        (["--", "/etc/passwd"], "command '/etc/passwd' is not executable; usual cause: chmod +x"),
        (["--fix", "token-budget", "--", PYTHON], "--fix is 'token-budget'; write ID=auto"),
        (
            ["--fix", "token-budge=on", "--", PYTHON],
            "--fix names 'token-budge', which is not a fix; did you mean",
        ),
        (["--fix", "zzz=on", "--", PYTHON], "known are staged-offsets-v1, "),
        (["--fix", "token-budget=maybe", "--", PYTHON], "Error: --fix token-budget is 'maybe': "),
        (["--metrics-port", "70000", "--", PYTHON], "Error: --metrics-port is 70000: "),
        (["--", PYTHON, "-I", "-m", "module"], "-I ignores PYTHONPATH"),
    ],
)
def test_bad_command_line_exits_with_2_and_one_line(small: Path, arguments: list[str], message: str) -> None:
    done = run(small, "run", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


@pytest.mark.parametrize("switch", ["false", "off", "False"])
@pytest.mark.parametrize("broken", [{}, {"TRTLLM_KVFIX_CONFIG": "missing.yaml", "TRTLLM_KVFIX_METRICS_PORT": "many"}])
def test_run_with_the_switch_off_starts_the_command_without_the_fixes(
    small: Path, switch: str, broken: dict[str, str]
) -> None:
    """Whatever the other settings are: it is what one reaches for when nothing works."""
    done = run(small, "run", "--", PYTHON, "-c", SHOW, TRTLLM_KVFIX_ENABLED=switch, **broken)
    assert (done.returncode, json.loads(done.stdout or "null")) == (0, OFF), done.stderr
    assert done.stderr.count("\n") == 1 and f"{PYTHON} starts WITHOUT the fixes" in done.stderr


def test_run_with_the_switch_off_in_its_file_starts_the_command_without_the_fixes(small: Path) -> None:
    (small / "settings.yaml").write_text("kvfix: {enabled: false}")
    done = run(small, "run", "--config", "settings.yaml", "--", PYTHON, "-c", SHOW)
    assert (done.returncode, json.loads(done.stdout or "null")) == (0, OFF), done.stderr


def test_run_with_the_switch_off_starts_what_it_would_refuse_and_a_missing_command_is_an_error(small: Path) -> None:
    done = run(small, "run", "--", PYTHON, "-I", "-c", "print('started')", TRTLLM_KVFIX_ENABLED="false")
    assert done.stdout == "started\n"
    assert "a section `kvfix:` stays in its configuration: " in done.stderr and "-I ignores PYTHONPATH" in done.stderr
    done = run(small, "run", "--", "./missing", TRTLLM_KVFIX_ENABLED="false")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_options_of_run_say_where_a_server_without_fixes_can_be_asked(small: Path) -> None:
    (small / "kvfix.yaml").write_text("kvfix: {metrics_port: 9400}")
    options = ("--dry-run", "--config", "kvfix.yaml", "--metrics-port", "9500", "--fix", "typo")
    done = run(small, "run", *options, "--", "sh", TRTLLM_KVFIX_ENABLED="false")
    told = dict(line.split("=", 1) for line in done.stdout.splitlines()[:-1])
    assert (told["TRTLLM_KVFIX_CONFIG"], told["TRTLLM_KVFIX_METRICS_PORT"]) == (f"{small / 'kvfix.yaml'}", "9500")


def test_dry_run_with_the_switch_off_starts_nothing(small: Path) -> None:
    done = run(small, "run", "--dry-run", "--", "sh", "-c", "echo started", TRTLLM_KVFIX_ENABLED="false")
    assert done.stdout.splitlines()[-2:] == ["TRTLLM_KVFIX_ENABLED=false", "sh -c 'echo started'"]


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["-I"], "-I"),
        (["-Es", "script.py"], "-Es"),
        (["-uS", "-m", "module"], "-uS"),
        (["-W", "error", "-I", "script.py"], "-I"),
        (["-X", "dev", "-m", "module", "-I"], None),
        (["-Werror", "script.py", "-I"], None),
        (["-WIgnore", "script.py"], None),
        (["-mIES"], None),
        (["-c", "code", "-E"], None),
        (["-um", "module", "-E"], None),
        (["script.py", "-E"], None),
        (["-"], None),
        ([], None),
    ],
)
def test_flags_that_keep_the_hook_out_are_seen_and_others_are_not(arguments: list[str], flag: str | None) -> None:
    assert hook_loss.deaf_flag(["/usr/bin/python3.11", *arguments]) == flag
    assert hook_loss.deaf_flag(["trtllm-serve", *arguments]) is None


def test_python_without_the_package_is_refused_when_it_imports_upstream_and_not_before(small: Path) -> None:
    """Another interpreter may have TensorRT-LLM and not us: there it would run without the fixes."""
    code = (
        "import runpy, sys\n"
        "sys.modules['trtllm_kvfix.overlay'] = None\n"
        f"runpy.run_path({str(hook_loss.BOOTSTRAP / 'sitecustomize.py')!r})\n"
        "print('fine')\nimport tensorrt_llm\n"
    )
    done = python(small, code)
    assert done.stdout == "fine\n"
    assert f"{PYTHON} cannot import trtllm_kvfix" in done.stderr
    assert "install it next to TensorRT-LLM" in done.stderr
    assert python(small, code, TRTLLM_KVFIX_ENABLED="False").returncode == 0, "the switch starts it all the same"


def test_isolated_python_has_the_persistent_hook_and_without_site_packages_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "hook_file", lambda: tmp_path / "hook.pth")
    hook, isolated, bare = tmp_path / "hook.pth", [PYTHON, "-I", "script.py"], [PYTHON, "-uS", "script.py"]
    with pytest.raises(SettingsError, match="install the hook with `trtllm-kvfix enable`"):
        launch.checked(isolated)
    hook.mkdir()  # which Python does not read
    with pytest.raises(SettingsError, match="install the hook with `trtllm-kvfix enable`"):
        launch.checked(isolated)
    hook.rmdir()
    hook.touch()
    assert launch.checked(isolated) == isolated
    with pytest.raises(SettingsError, match="-uS reads no site-packages"):
        launch.checked(bare)


@pytest.mark.parametrize(
    ("first_line", "refused"),
    [
        ("#!/usr/bin/python3 -sE", True),
        ("#!/usr/bin/env -S python3.11 -I", True),
        ("#!/usr/bin/python3 -s", False),
        ("#!/usr/bin/env python3", False),
        ("#!/bin/sh -E", False),
        ("#!", False),
        ("\x7fELF", False),
    ],
)
@pytest.mark.parametrize("launcher", [[], ["/bin/sh", "-n", "2"]])
def test_first_line_of_a_script_counts_and_a_launcher_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_line: str, refused: bool, launcher: list[str]
) -> None:
    """Packagers give console scripts flags of their own, and such a server would run without the fixes, unsaid."""
    monkeypatch.setattr(launch, "hook_file", lambda: tmp_path / "hook.pth")
    script = str(executable(tmp_path / "trtllm-serve", f"{first_line}\nexit\n"))
    command = [*launcher, script, "model", "-I"]
    if refused:
        with pytest.raises(SettingsError, match=r"the Python of .*trtllm-serve .* ignores PYTHONPATH"):
            launch.checked(command)
    else:
        assert launch.checked(command) == command


def test_python_behind_a_launcher_is_looked_at_and_its_arguments_are_not() -> None:
    launcher = ["/bin/sh", "-n", "2"]
    found = hook_loss.first_deaf([*launcher, "python3", "-I", "script.py"])
    assert found is not None and found.what == "python3 -I"
    assert hook_loss.first_deaf([*launcher, "python3", "script.py", "python3", "-I"]) is None


@pytest.mark.parametrize("installed", [False, True])
def test_a_package_whose_folder_no_path_can_name_needs_the_hook(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = tmp_path / "hook.pth"
    monkeypatch.setattr(launch, "hook_file", lambda: hook)
    monkeypatch.setattr(launch, "BOOTSTRAP", Path("/opt/a:b/trtllm_kvfix/overlay/bootstrap"))
    if installed:
        hook.touch()
        assert launch.checked(["sh"]) == ["sh"]
    else:
        with pytest.raises(SettingsError, match=r"'/opt/a:b/.*' has a colon, which ends a name in PYTHONPATH"):
            launch.checked(["sh"])


def test_path_begins_with_our_folder_once() -> None:
    first = launch.variables(Settings(), {"PYTHONPATH": "a:b"}, "job")
    again = launch.variables(Settings(), first, "job")
    assert first["PYTHONPATH"] == again["PYTHONPATH"] == os.pathsep.join([str(hook_loss.BOOTSTRAP), "a", "b"])


@pytest.mark.parametrize("theirs", [":/plugins", "/plugins:", "/a::/b", ":"])
def test_an_empty_name_in_the_path_stays_the_working_folder(theirs: str) -> None:
    """It comes from PYTHONPATH=$PYTHONPATH:/plugins where none was set, and modules may be found by it."""
    first = launch.variables(Settings(), {"PYTHONPATH": theirs}, "job")
    again = launch.variables(Settings(), first, "job")
    assert first["PYTHONPATH"] == again["PYTHONPATH"] == f"{hook_loss.BOOTSTRAP}:{theirs}"


@pytest.mark.parametrize("environ", [{}, {"PYTHONPATH": ""}])
def test_a_path_that_is_not_set_names_our_folder_alone(environ: dict[str, str]) -> None:
    first = launch.variables(Settings(), environ, "job")
    again = launch.variables(Settings(), first, "job")
    assert first["PYTHONPATH"] == again["PYTHONPATH"] == str(hook_loss.BOOTSTRAP)


@pytest.mark.parametrize(
    ("version", "forwarded"), [("mpirun (Open MPI) 4.1.4", True), ("HYDRA build details: MPICH 4.1", False)]
)
def test_open_mpi_is_told_which_variables_other_hosts_get(tmp_path: Path, version: str, forwarded: bool) -> None:
    mpirun = str(executable(tmp_path / "mpirun", f"#!/bin/sh\necho '{version}'\n"))
    line = launch.forwarding([mpirun, "-n", "2", "trtllm-serve"], ["A", "B"])
    assert line == [mpirun, *(["-x", "A", "-x", "B"] if forwarded else []), "-n", "2", "trtllm-serve"]


def test_other_programs_get_no_such_options() -> None:
    assert launch.forwarding(["srun", "-n", "2"], ["A"]) == ["srun", "-n", "2"]


def test_command_must_exist() -> None:
    with pytest.raises(SettingsError, match="usual cause: it is installed in another environment"):
        launch.checked(["no-such-command-anywhere"])
