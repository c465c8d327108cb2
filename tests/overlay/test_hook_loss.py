"""Commands that lose the hook of `run`: those that say so are refused, shell scripts that may do so are warned of."""

import sys
from pathlib import Path

import pytest

from tests.overlay.test_launch import executable, run
from trtllm_kvfix.overlay import hook_loss

PYTHON = sys.executable
KEEPS = f"PYTHONPATH={hook_loss.BOOTSTRAP}:/x"

DEAF = [
    (["env", "PYTHONPATH=/x", "python", "a.py"], "`env PYTHONPATH=/x`"),
    (["env", "A=1", "-C", "/", "PYTHONPATH=", "trtllm-serve"], "`env PYTHONPATH=`"),
    (["/usr/bin/env", "-i", "python"], "`env -i`"),
    (["env", "-", "python"], "`env -`"),
    (["env", "-vi", "python"], "`env -vi`"),
    (["env", "-u", "PYTHONPATH", "python"], "`env -u PYTHONPATH`"),
    (["env", "-uPYTHONPATH", "python"], "`env -u PYTHONPATH`"),
    (["env", "-u", "A", "--unset=PYTHONPATH", "python"], "`env -u PYTHONPATH`"),
    (["env", "-S", "python -I x"], "python -I"),
    (["env", "-S", "-i python x"], "`env -i`"),
    (["env", "-Spython -I x"], "python -I"),
    (["env", "--split-string=A=1 python -E", "x"], "python -E"),
    (["mpirun", "-x", "PYTHONPATH=/x", "python", "a.py"], "`PYTHONPATH=/x`"),
    (["nohup", "env", "-i", "python"], "`env -i`"),
    (["sh", "-c", "python -I x"], "python -I"),
    (["bash", "-lc", "exec /usr/bin/python3 -uI x"], "/usr/bin/python3 -uI"),
    (["bash", "-eo", "pipefail", "-c", "cd /; nohup python -E x >log 2>&1 &"], "python -E"),
    (["sh", "-c", "a && (env -i python x)"], "`env -i`"),
    (["sh", "-c", "export PYTHONPATH=/x; exec python x"], "`PYTHONPATH=/x`"),
    (["sh", "-c", "unset PYTHONPATH\\nexec python x"], "`unset PYTHONPATH`"),
    (["nice", "sh", "-c", "python -S x"], "python -S"),
]
HEARING = [
    ["env", "A=1", "python", "a.py", "-I"],
    ["env", "-u", "A", "python", "a.py", "PYTHONPATH=/x"],
    ["env", KEEPS, "python"],
    ["env", "-S", "python -u x"],
    ["sh", "-c", "PYTHONPATH=/x:$PYTHONPATH python x"],
    ["sh", "-c", 'export PYTHONPATH="/x:${PYTHONPATH}"; python x'],
    ["sh", "-c", "PYTHONPATH_OLD=/x python x -I"],
    ["sh", "-c", "echo 'a quotation that goes on"],
    ["sh", "-c"],
    ["trtllm-serve", "-i", "model"],
    [],
]


@pytest.mark.parametrize(("command", "what"), DEAF)
def test_a_command_that_says_so_is_seen(command: list[str], what: str) -> None:
    found = hook_loss.first_deaf([word.replace("\\n", "\n") for word in command])
    assert found is not None and found.what == what


@pytest.mark.parametrize("command", HEARING)
def test_other_commands_are_let_through(command: list[str]) -> None:
    assert hook_loss.first_deaf(command) is None


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (f"#!/bin/sh\n'''exec' \"/a long path/{Path(PYTHON).name}\" -I \"$0\" \"$@\"\n' '''\nimport x\n", "-I"),
        (f"#!/bin/sh\n'''exec' /{253 * 'x'}/python3.11 -sE \"$0\"\n' '''\n", "-sE"),
        ("#!/bin/sh\n'''exec' /long/python3 \"$0\" \"$@\"\n' '''\n", None),
        ('#!/usr/bin/env -S "python3" -I\n', "-I"),
        ("#!/usr/bin/env -Spython3 -I\n", "-I"),
        ("#!/usr/bin/env -S A=1 python3 -I\n", "-I"),
        ("#!/usr/bin/env python3\n-I", None),
    ],
)
def test_the_first_lines_of_a_script_say_so(tmp_path: Path, text: str, flag: str | None) -> None:
    assert hook_loss.deaf_flag(hook_loss.interpreter_line(str(executable(tmp_path / "serve", text)))) == flag


@pytest.mark.parametrize(
    "command",
    [["env", "PYTHONPATH=/x", PYTHON], ["sh", "-c", f"exec {PYTHON} -I x"], ["env", "-S", f"{PYTHON} -E x"]],
)
def test_run_refuses_them_in_one_line(small: Path, command: list[str]) -> None:
    done = run(small, "run", "--", *command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "PYTHONPATH, through which `run` brings the fixes" in done.stderr and "`trtllm-kvfix enable`" in done.stderr


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("export PYTHONPATH=/x", "`PYTHONPATH=/x` takes away"),
        ("  A=1 PYTHONPATH=/x true", "`PYTHONPATH=/x` takes away"),
        (f"{PYTHON} -I -c ''", "-I ignores"),
        ("unset PYTHONPATH", "`unset PYTHONPATH` takes away"),
        ("export PYTHONPATH=/x:$PYTHONPATH", None),
        ("# export PYTHONPATH=/x", None),
    ],
)
@pytest.mark.parametrize("how", [[], ["sh"]])
def test_run_warns_of_a_shell_script_that_may_lose_the_hook(
    small: Path, line: str, warned: str | None, how: list[str]
) -> None:
    script = executable(small / "launch.sh", f"#!/bin/sh\n\n{line}\necho started\n")
    done = run(small, "run", "--", *how, str(script))
    assert done.stdout == "started\n", done.stderr
    if warned is None:
        assert done.stderr == ""
    else:
        assert f"{script}, line 3: " in done.stderr and warned in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "calls", [". ./env.sh", "source ./env.sh", "bash ./env.sh && :", "./env.sh", "(exec ./env.sh)"]
)
@pytest.mark.parametrize("how", [["./launch.sh"], ["bash", "-c", "cd . && ./launch.sh"]])
def test_a_script_that_another_reads_or_calls_is_looked_at(
    small: Path, calls: str, how: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(small / "env.sh", "#!/bin/bash\n./launch.sh\nexport PYTHONPATH=/x\n")  # in a circle
    executable(small / "launch.sh", f"#!/bin/bash\n{calls}\n")
    monkeypatch.chdir(small)
    (found,) = hook_loss.doubts(how)
    assert found.startswith("./env.sh, line 3: `PYTHONPATH=/x` takes away")
