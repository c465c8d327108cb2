"""`doctor` answers first: one sentence with the verdict, then what to do, in few and short lines."""

import os
import sys
from pathlib import Path

import pytest

from tests import fresh
from tests.overlay.upstream_double import ROOT, environment
from tests.standin.fixture import STANDIN, as_release
from trtllm_kvfix.tools.doctor.report import LINES_MAX, MORE
from trtllm_kvfix.tools.terminal import COLUMNS_MIN

COMMAND = (sys.executable, "-m", "trtllm_kvfix")
RUN = (*COMMAND, "run", "--")
V1_ALONE = "computed-blocks, token-budget"
H7, H8, H9 = "H7 (with pipeline parallelism)", "H8 (with a connector)", "H9 (with LoRA on routed experts)"


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As of 1.4.0rc1, where V2 is the default."""
    return as_release(tmp_path_factory.mktemp("release"), "1.4.0rc4", v2=True)


def doctor(
    place: Path, variant: str, *options: str, launcher: tuple[str, ...] = (), **variables: str
) -> tuple[str, list[str], int]:
    """The verdict, the lines after it, and the exit code; a terminal's width does not count in a pipe."""
    environ = environment(place, STANDIN_VARIANT=variant, KVFIX_BOUND=str(ROOT / "build" / "bound"), **variables)
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (place, ROOT)))
    command = [*launcher, *COMMAND, "doctor", *options]
    done = fresh.run(command, cwd=place, env=environ)
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    assert [line for line in lines if len(line) > COLUMNS_MIN] == []
    end = next(at for at, line in enumerate(lines) if line.endswith("."))
    return " ".join(line.strip() for line in lines[: end + 1]), lines[end + 1 :], done.returncode


def test_a_server_with_v2_by_default_lacks_only_what_v2_needs(v2: Path) -> None:
    verdict, advice, code = doctor(v2, "D")
    by, fixes = f"H2, {H7} and {H9}", "staged-offsets-v2, input-copy-fence and graph-inputs"
    assert verdict == f"NOT FIXED: default manager V2, hit by {by}; {fixes} fix them."
    assert advice == [
        "  TensorRT-LLM 1.4.0rc4, variant D (by its number D or N); hook: none",
        "  start the server with the fixes: trtllm-kvfix run -- trtllm-serve MODEL ...",
        "  or put them into every server of this Python: trtllm-kvfix enable",
        f"  not needed for V2: {V1_ALONE}",
        f"  {MORE}",
    ]
    assert code == 1


def test_below_run_nothing_is_missing(v2: Path) -> None:
    verdict, _, code = doctor(v2, "D", launcher=RUN)
    assert verdict.startswith(f"FIXED, nothing is missing: default manager V2, hit by H2, {H7} and {H9}; ")
    assert code == 0


TRIMMING = {"STANDIN_STEP_PROLOGUE_TRIM": "1"}
MENDED = "until then, TRTLLM_STEP_PROLOGUE_TRIM=0 lets the next step mend a torn table (H10), and =verify ends the step"


@pytest.mark.parametrize(
    ("launcher", "variables", "trim", "advised"),
    [
        ((), {}, "on", True),
        (RUN, {}, "on", False),
        ((), {"TRTLLM_STEP_PROLOGUE_TRIM": "0"}, "off", False),
        ((), {"TRTLLM_STEP_PROLOGUE_TRIM": "verify"}, "verify", False),
    ],
    ids=["bare", "fixed", "off", "verify"],
)
def test_it_says_whether_upstream_skips_launches_and_what_to_do_without_us(
    v2: Path, launcher: tuple[str, ...], variables: dict[str, str], trim: str, advised: bool
) -> None:
    _, advice, _ = doctor(v2, "F", launcher=launcher, **TRIMMING, **variables)
    said = " ".join(line.strip() for line in advice)
    assert f"step-prologue trim: {trim}; hook: " in said
    assert (MENDED in said) == advised


def test_a_build_without_a_trim_is_told_of_none(v2: Path) -> None:
    _, advice, _ = doctor(v2, "F")
    assert "trim" not in " ".join(advice)


@pytest.mark.parametrize(("manager", "warns"), [("upstream", True), ("native", False)])
def test_upstream_s_own_host_tier_is_warned_of_where_its_books_are_wrong(
    tmp_path: Path, manager: str, warns: bool
) -> None:
    place = as_release(tmp_path, "1.2.1", v2=False)
    (place / "server.yaml").write_text("kv_cache_config: {host_cache_size: 4096}\n")
    command = ("--", sys.executable, "server.py", "--config", "server.yaml")
    _, advice, _ = doctor(place, "B", *command, launcher=RUN, TRTLLM_KVFIX_MANAGER=manager)
    assert ("warning: server.yaml sets host_cache_size: 4096" in " ".join(advice)) == warns


@pytest.mark.parametrize(
    ("cache", "hit", "needless"),
    [("{host_cache_size: 4096}", "H8 and H17;", False), ("{max_tokens: 512}", "H7 and H8;", True)],
)
def test_a_hazard_that_takes_a_host_tier_is_none_where_the_file_gives_none(
    tmp_path: Path, cache: str, hit: str, needless: bool
) -> None:
    place = as_release(tmp_path, "1.2.0", v2=False)
    (place / "server.yaml").write_text(f"kv_cache_config: {cache}\n")
    command = ("--", sys.executable, "server.py", "--config", "server.yaml")
    verdict, advice, code = doctor(place, "B", *command, launcher=RUN)
    assert verdict.startswith("FIXED, nothing is missing: default manager V1, hit by H1, H3, ") and hit in verdict
    assert ("  not needed without a host tier: partial-copies" in advice) is needless
    assert ("partial-copies" in verdict) is not needless and code == 0


def test_where_copies_are_never_ordered_it_takes_no_host_tier(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("kv_cache_config: {max_tokens: 512}\n")
    command = ("--", sys.executable, "server.py", "--config", str(tmp_path / "server.yaml"))
    verdict, _, _ = doctor(STANDIN, "A", *command, launcher=RUN)
    assert " H8 and H17; " in verdict and "partial-copies" in verdict


def test_a_fix_that_cannot_matter_may_be_off(v2: Path) -> None:
    verdict, _, code = doctor(v2, "D", launcher=(*RUN[:-1], "--fix", "token-budget=off", "--"))
    assert verdict.startswith("FIXED, nothing is missing: ") and code == 0


def test_the_server_s_file_may_choose_the_other_manager(v2: Path) -> None:
    (v2 / "server.yaml").write_text("kv_cache_config: {use_kv_cache_manager_v2: false}\n")
    command = ("--", sys.executable, "server.py", "--config", "server.yaml")
    verdict, advice, code = doctor(v2, "D", *command, launcher=RUN)
    assert verdict.startswith(f"FIXED, nothing is missing: server.yaml's manager V1, hit by H3, {H7}, {H8} and {H9}; ")
    assert "  not needed for V1: staged-offsets-v2" in advice and code == 0


def test_a_checkout_is_hit_whatever_runs_here(v2: Path) -> None:
    (v2 / "server.yaml").write_text("kv_cache_config: {use_kv_cache_manager_v2: true}\n")
    options = ("--source", str(STANDIN), "--", "trtllm-elsewhere", "--config", "server.yaml")
    verdict, advice, code = doctor(v2, "D", *options)
    assert verdict.startswith("HIT: server.yaml's manager V2, hit by ")
    assert "step-prologue trim: unknown; read, not imported" in " ".join(line.strip() for line in advice[:2])
    assert advice[2] == "  start the server with the fixes: trtllm-kvfix run -- trtllm-serve MODEL ..."
    assert code == 1


@pytest.mark.parametrize(
    ("options", "standing", "advice"),
    [
        (
            ("--fix", "staged-offsets-v1=off"),
            "PARTLY FIXED, by your settings: ",
            "staged-offsets-v1 is needed and switched off: take",
        ),
        (("--fix", "staged-offsets-v1=observe"), "PARTLY FIXED, by your settings: ", "only observed, not fixed: s"),
    ],
)
def test_what_is_off_or_only_observed_is_not_called_fixed(options: tuple[str, ...], standing: str, advice: str) -> None:
    verdict, lines, _ = doctor(STANDIN, "B", launcher=(*RUN[:-1], *options, "--"))
    assert verdict.startswith(f"{standing}default manager V1, hit by H1, H3, H7, H8 and H17 (with a host tier); ")
    assert any(line.startswith(f"  {advice}") for line in lines)


def test_a_switch_that_is_off_is_what_to_change() -> None:
    verdict, advice, code = doctor(STANDIN, "B", TRTLLM_KVFIX_ENABLED="false")
    assert verdict.startswith("NOT FIXED, by your settings: ") and code == 0
    assert "TRTLLM_KVFIX_ENABLED or kvfix.enabled is false, so no fix is applied" in advice[1]


def test_a_build_that_no_probe_knows_fits_on_a_screen() -> None:
    verdict, advice, code = doctor(STANDIN, "mangled")
    assert verdict == "CANNOT TELL: default manager V1, and no probe knows this TensorRT-LLM."
    assert advice[1] == "  not applied, because their probes cannot tell whether they fit:"
    assert len(advice) <= LINES_MAX and code == 1


def test_problems_that_do_not_fit_are_counted_and_come_with_verbose() -> None:
    """Each takes two lines or more, so that some are left out."""
    off = ("staged-offsets-v1", "computed-blocks", "batched-admission", "input-copy-fence")
    launcher = [*RUN[:-1]]
    for fix_id in off:
        launcher += ["--fix", f"{fix_id}=off"]
    _, advice, _ = doctor(STANDIN, "B", launcher=(*launcher, "--"))
    assert len(advice) <= LINES_MAX
    assert advice[-2:] == ["  2 further lines with --verbose", f"  {MORE}"]
    _, verbose, _ = doctor(STANDIN, "B", "--verbose", launcher=(*launcher, "--"))
    assert sum("is needed and switched off" in line for line in verbose) == len(off)
    for part in ("Manager of the KV cache", "Fixes", "Host buffers", "This machine"):
        assert part in verbose
    assert f"  {MORE}" not in verbose
