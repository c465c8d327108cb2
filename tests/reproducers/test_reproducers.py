"""The reproducers on the stand-in, with a double of torch over the simulated device. On a GPU: integration/gpu.

Each judges its own control and ends with 2 where that is wrong, so a double that is too kind or too slow shows.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import fresh
from tests.standin.fixture import STANDIN
from trtllm_kvfix.cli import main
from trtllm_kvfix.tools import reproduce
from trtllm_kvfix.tools.reproduce import script_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {name.lower(): script_of(name) for name in reproduce.SCRIPTS}
LINES_MAX = 200
SHOWS, CLEAN, NOTHING_TO_SEE = 1, 0, 2

# By hazard: in which builds it shows, in which it does not, and in which there is nothing of the kind.
EXPECTED = {
    "h1": {"B": SHOWS, "C": SHOWS, "D": CLEAN, "A": NOTHING_TO_SEE},
    "h2": {"B": SHOWS, "D": SHOWS, "F": SHOWS, "A": NOTHING_TO_SEE},
    "h3": {"A": SHOWS, "B2": SHOWS, "C": CLEAN},
    "h4": {"C": SHOWS, "B": NOTHING_TO_SEE},
    "h5": {"B": SHOWS},  # of torch alone: any build will do
    "h7": {"B": SHOWS},
    "h8": {"A": SHOWS, "B": SHOWS, "B2": CLEAN},
    "h8-v2": {"F": SHOWS, "D": NOTHING_TO_SEE, "A": NOTHING_TO_SEE},
    "h9": {"D": SHOWS, "C": NOTHING_TO_SEE},
    "h10": {"F+trim": SHOWS, "F": NOTHING_TO_SEE},
    "h17": {"A": SHOWS, "B": SHOWS, "B2": SHOWS, "C": CLEAN},
}
RUNS = [(hazard, variant, code) for hazard, codes in EXPECTED.items() for variant, code in codes.items()]
MODES = [
    ("1", SHOWS, "steps that read wrong pages, of 7: 0 with a wait and 7 without"),
    ("0", CLEAN, "steps that read wrong pages, of 7: 0 with a wait and 1 without"),
    ("verify", SHOWS, "upstream's own check found it: a copy that would be skipped has changed the device"),
]
# With the overlay they come out clean. Not H5, which is a connector's, H7, which has no loop, and H9, which replays its
# graph by torch: the fixes work where TensorRT-LLM does these.
FIXED = [("h1", "B"), ("h2", "B"), ("h2", "D"), ("h3", "B2"), ("h4", "C"), ("h8", "A"), ("h8-v2", "F"),
         ("h10", "F+trim"), ("h17", "B2")]  # fmt: skip
# A server has imported the executor before it makes a manager; the fixes wait for that.
AS_A_SERVER = (
    "import runpy, sys, tensorrt_llm._torch.pyexecutor.py_executor_creator\n"
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)
BELOW_THE_OVERLAY = ("-m", "trtllm_kvfix", "run", "--", sys.executable, "-c", AS_A_SERVER)

# With a driver in the place of the machine's, which may have none.
ON_A_DRIVER = """
import ctypes, runpy, sys, torch
from tests.hazards.batch_driver import BatchDriver
driver = BatchDriver(torch._tensors.device, {})
open_gate = torch._tensors.open_gate
torch._tensors.open_gate = lambda gate: (driver.gate_opens(), open_gate(gate))
ctypes.CDLL = lambda library: driver
runpy.run_path(sys.argv[1], run_name='__main__')
"""


def build(variant: str) -> dict[str, str]:
    """The variables that choose it: a variant, or one with upstream's step-prologue trim."""
    name, _, more = variant.partition("+")
    return {"STANDIN_VARIANT": name, **({"STANDIN_STEP_PROLOGUE_TRIM": "1"} if more == "trim" else {})}


def script(hazard: str, folder: Path) -> str:
    """The path of a file with it."""
    path = folder / f"{hazard}.py"
    path.write_text(SCRIPTS[hazard])
    return str(path)


def run(variant: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    paths = (Path(__file__).with_name("double"), STANDIN, ROOT)
    own = {name: value for name, value in os.environ.items() if not name.startswith("TRTLLM_KVFIX_")}
    environ = own | build(variant) | variables | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    return fresh.run([sys.executable, *arguments], env=environ, limit_s=120)


@pytest.mark.parametrize(("hazard", "variant", "code"), RUNS)
def test_a_reproducer_says_what_the_build_has(hazard: str, variant: str, code: int, tmp_path: Path) -> None:
    done = run(variant, script(hazard, tmp_path))
    assert done.stderr == ""
    assert done.returncode == code, done.stdout
    assert done.stdout.count("\n") in (1, 2), "it says what it saw, and no more"


@pytest.mark.parametrize(("mode", "code", "said"), MODES)
def test_a_torn_launch_stays_by_the_mode_of_the_trim(mode: str, code: int, said: str, tmp_path: Path) -> None:
    done = run("F+trim", script("h10", tmp_path), TRTLLM_STEP_PROLOGUE_TRIM=mode)
    assert (done.stdout, done.returncode) == (f"{said}\n", code), done.stderr


@pytest.mark.parametrize(
    ("driver", "code", "said"),
    [
        ("late_from=128 * 1024", SHOWS, "read late without: 128 KiB, 256 KiB, 1024 KiB; with a wait: no size"),
        ("late_from=1 << 30", CLEAN, "read late without: no size; with a wait: no size"),
    ],
)
def test_the_reproducer_of_a_driver_says_what_the_driver_does(
    driver: str, code: int, said: str, tmp_path: Path
) -> None:
    done = run("B", "-c", ON_A_DRIVER.format(driver), script("h13", tmp_path))
    assert (done.returncode, done.stderr) == (code, ""), done.stdout + done.stderr
    assert said in done.stdout.splitlines()


def test_without_a_driver_it_cannot_be_looked_at(tmp_path: Path) -> None:
    done = run(
        "B", "-c", ON_A_DRIVER.format("").replace("library: driver", "library: object()"), script("h13", tmp_path)
    )
    assert done.returncode == NOTHING_TO_SEE
    assert "which came with the drivers of CUDA 12.8" in done.stderr


NOTHING_INSTALLED = """
import runpy, sys
sys.modules |= dict.fromkeys(("torch", "tensorrt_llm", "nixl"))
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("hazard", SCRIPTS)
def test_where_something_is_not_installed_one_line_says_what(hazard: str, tmp_path: Path) -> None:
    done = run("B", "-c", NOTHING_INSTALLED, script(hazard, tmp_path))
    said = (done.stdout + done.stderr).splitlines()
    assert done.returncode == NOTHING_TO_SEE and len(said) == 1, said
    assert any(name in said[0] for name in ("torch", "tensorrt_llm", "nixl", "NIXL"))


@pytest.mark.parametrize(("hazard", "variant"), FIXED)
def test_with_the_overlay_it_comes_out_clean(hazard: str, variant: str, tmp_path: Path) -> None:
    done = run(variant, *BELOW_THE_OVERLAY, script(hazard, tmp_path))
    assert done.returncode == CLEAN, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("hazard", "package"),
    [
        (hazard, package)
        for hazard, text in SCRIPTS.items()
        for package in ("torch", "tensorrt_llm", "nixl")
        if re.search(rf"^ *(import|from) {package}\b|import_module\(f?\"{package}\b", text, re.MULTILINE)
    ],
)
def test_a_package_that_cannot_be_imported_is_no_hazard(hazard: str, package: str, tmp_path: Path) -> None:
    path = script(hazard, tmp_path)
    (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is broken')\n")
    places = (tmp_path, Path(__file__).with_name("double"))
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    done = fresh.run([sys.executable, path], env=environ, limit_s=60)
    assert done.returncode == NOTHING_TO_SEE
    assert f"{package} is broken" in done.stdout + done.stderr


def test_every_hazard_has_one() -> None:
    pages = {page.name.partition("-")[0] for page in (ROOT / "docs" / "hazards").glob("h*-*.md")}
    assert {name.partition("-")[0] for name in SCRIPTS} == pages
    assert set(SCRIPTS) - set(EXPECTED) == {"h6", "h13"}, "NIXL's runs in integration/nixl; that of a driver runs below"


@pytest.mark.parametrize("hazard", SCRIPTS)
def test_a_reproducer_stands_alone_and_says_what_it_shows(hazard: str) -> None:
    text = SCRIPTS[hazard]
    assert len(text.splitlines()) <= LINES_MAX
    assert "kvfix" not in text
    said = text.split('"""')[1]
    assert said.startswith(f"{hazard.upper()}: ")
    assert re.findall(r"^(Shows|Control|Needs|Exit code):", said, re.MULTILINE) == [
        "Shows", "Control", "Needs", "Exit code",
    ]  # fmt: skip
    assert re.search(r"second|minute", said), "how long it takes"


def test_the_command_prints_a_script_as_it_is_and_lists_all() -> None:
    for hazard, text in SCRIPTS.items():
        assert CliRunner().invoke(main, ["reproduce", hazard, "--script"]).stdout == text
    listed = CliRunner().invoke(main, ["reproduce"]).stdout.splitlines()
    assert [line.split()[0].lower() for line in listed] == list(SCRIPTS)
    assert listed[5] == "H6  two NIXL agents of one host share a metadata listener's port."


def test_the_command_runs_a_script_and_ends_with_its_code() -> None:
    shows, not_there = (run(variant, "-m", "trtllm_kvfix", "reproduce", "H1") for variant in "BA")
    assert (shows.returncode, not_there.returncode) == (SHOWS, NOTHING_TO_SEE)
    assert "without one it got OTHER offsets" in shows.stdout


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("sys.exit(1)", 1, ""),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 2, "cannot be tested here: the script was ended by SIGSEGV\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", 0, ""),  # a terminal sends it to the script, too: a traceback
    ],
)
def test_the_end_of_a_script_is_told_by_the_command(
    line: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "script_of", lambda _: f"import os, signal, sys\n{line}\n")
    done = CliRunner().invoke(main, ["reproduce", "H13"])
    assert (done.exit_code, done.stderr, capfd.readouterr().err) == (code, said, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["H11"], "no script for 'H11'; there is one for H1, H2,"), (["--script"], "name it: H1, H2")],
)
def test_the_command_refuses_what_it_does_not_know(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["reproduce", *arguments])
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_a_script_has_what_it_takes_from_us_and_no_more() -> None:
    """H3 has its scenario, which an installed TensorRT-LLM plays for `selfcheck`, too; H9 needs no manager."""
    assert "def batch_of_two(" in SCRIPTS["h3"] and "fits_the_budget" not in SCRIPTS["h3"]
    assert "def accepted(" in SCRIPTS["h9"] and "def manager(" not in SCRIPTS["h9"]
