"""The command: what it prints, in which form, and how it exits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from trtllm_kvfix.cli import main
from trtllm_kvfix.errors import EXIT_INTERRUPTED
from trtllm_kvfix.tools.replay import command
from trtllm_kvfix.tools.replay.engine import Replay
from trtllm_kvfix.tools.replay.outcome import ReplayOutcome, ReplayReport

from .shapes import TINY


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def report_of(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_policies_are_compared_at_each_size() -> None:
    report = report_of("--generate", "chat", "--compare-policies", "--sweep", "0,400")
    shapes = [outcome["shape"] for outcome in report["outcomes"]]
    assert [(each["blocks_host"], each["host_tier"], each["host_admission"]) for each in shapes] == [
        (0, "built-in", "adaptive"), (400, "built-in", "adaptive"), (400, "native", "adaptive"),
        (400, "connector", "all"), (400, "connector", "adaptive"),
    ]  # fmt: skip


def test_the_page_of_policies_shows_each_tier_the_gap_and_the_price() -> None:
    sizes = ("--bytes-per-block", str(1 << 20), "--sweep", "0,400MiB", "--price-per-gib", "10", "--remote", "1GiB")
    lines = run("--generate", "chat", "--compare-policies", *sizes).stdout.splitlines()
    header = next(line for line in lines if "of gap" in line)
    assert " ".join(header.split()) == "size policy GPU host store at most of gap to host price"
    rows = [line for line in lines if {"none", "built-in", "native", "all", "adaptive"}.intersection(line.split()[2:3])]
    assert [row.split()[-1] for row in rows] == ["0", "4", "4", "4", "4"]
    assert [any("+" in cell or cell.startswith("-") for cell in row.split()) for row in rows] == [
        False, False, True, True, True,
    ]  # fmt: skip


TIMED = ("--generate", "chat", "--host-tier", "connector", "--blocks-host", "900", "--bytes-per-block", "4194304")


def test_hits_that_would_take_longer_than_computing_are_computed() -> None:
    """An iteration is 20 ms, so at 5,000 tokens a second a hit of fewer than 100 tokens is not worth it."""
    timed = (*TIMED, "--iteration-ms", "20", "--host-gb-per-s", "50", "--prefill-tokens-per-s")
    by_speed = {speed: report_of(*timed, speed)["outcomes"][0] for speed in ("10", "5000", "1e9")}
    plain = report_of(*TIMED, "--iteration-ms", "20")["outcomes"][0]
    assert plain["hits"] == [] and plain["tokens"]["host"] > 0
    assert by_speed["10"]["tokens"] == plain["tokens"], "where computing is slow, every hit is loaded"
    assert 0 < by_speed["5000"]["tokens"]["host"] < plain["tokens"]["host"]
    assert by_speed["1e9"]["tokens"]["host"] == 0
    (short, *_) = by_speed["5000"]["hits"]
    assert (short["tier"], short["tokens_max"]) == ("host", 1024) and 0 < short["loaded"] < short["hits"]
    shown = run(*timed, "5000").stdout
    assert "hits by the tokens that they add" in shown and f"{short['load_ms']:,.1f} ms" in shown


def test_fetches_that_would_take_longer_than_computing_are_computed() -> None:
    """The host tier is small and fast, so what counts is the store's speed."""
    small = ("--generate", "chat", "--host-tier", "connector", "--blocks-host", "60", "--bytes-per-block", "4194304")
    speeds = ("--iteration-ms", "20", "--host-gb-per-s", "50", "--prefill-tokens-per-s", "5000")
    timed = (*small, *speeds, "--remote", "4GiB")
    untimed = report_of(*timed)["outcomes"][0]
    by_speed = {speed: report_of(*timed, "--store-gb-per-s", speed)["outcomes"][0] for speed in ("1e6", "1.5", "0.01")}
    assert "store" not in {each["tier"] for each in untimed["hits"]}
    found = {speed: outcome["tokens"]["remote"] for speed, outcome in by_speed.items()}
    assert found["1e6"] >= found["1.5"] > found["0.01"] == 0 < untimed["tokens"]["remote"]
    (short, *_) = (each for each in by_speed["1.5"]["hits"] if each["tier"] == "store")
    assert 0 < short["loaded"] < short["hits"]


def test_hits_of_each_policy_are_told_apart() -> None:
    sizes = ("--bytes-per-block", str(1 << 20), "--sweep", "400MiB", "--iteration-ms", "20")
    speeds = ("--host-gb-per-s", "50", "--prefill-tokens-per-s", "5000")
    shown = run("--generate", "chat", "--compare-policies", *sizes, *speeds).stdout
    of_hits = shown.partition("hits by the tokens")[2].splitlines()
    assert {line.split(" host ")[0].strip() for line in of_hits if " host " in line and " ms" in line} == {
        "400.0 MiB, all", "400.0 MiB, adaptive",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--compare-policies", "--compare"), "--compare and --compare-policies exclude each other"),
        (("--compare-policies", "--host-tier", "connector"), "--host-tier and --compare-policies exclude each other"),
        (("--host-gb-per-s", "1"), "are needed together"),
        (("--host-gb-per-s", "1", "--prefill-tokens-per-s", "1"), "--host-gb-per-s needs the size of a block"),
        (
            ("--host-gb-per-s", "1", "--prefill-tokens-per-s", "1", "--bytes-per-block", "1"),
            "--host-gb-per-s is about hits of the connector",
        ),
        (("--store-gb-per-s", "1"), "are needed together"),
        (
            (
                *("--host-gb-per-s", "1", "--prefill-tokens-per-s", "1", "--store-gb-per-s", "1"),
                *("--bytes-per-block", "1", "--host-tier", "connector"),
            ),
            "--store-gb-per-s is about fetches from --remote",
        ),
        (("--price-per-gib", "1"), "--price-per-gib needs --compare-policies"),
        (("--compare-policies", "--price-per-gib", "1"), "--price-per-gib needs the size of a block"),
    ],
)
def test_what_says_nothing_beside_the_policies_is_refused(options: tuple[str, ...], message: str) -> None:
    result = run("--generate", "small", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_compare_ends_by_saying_in_words_what_was_shown() -> None:
    result = run("--generate", "small", "--compare")
    assert result.exit_code == 0
    one_by_one, batch = result.stdout.splitlines()[-2:]
    assert one_by_one.startswith(
        "One by one: 16 of 46 iterations exceeded the budget of 1,024 tokens, at most by 828: "
    )
    assert batch == (
        "In a batch: 0 of 46 iterations exceeded the budget of 1,024 tokens, and all 200 requests reused exactly what "
        "had been estimated."
    )


def test_one_request_is_not_called_all_of_them(tmp_path: Path) -> None:
    trace = tmp_path / "one.jsonl"
    trace.write_text(TINY.read_text().splitlines()[0] + "\n")
    sizes = ("--max-batch-size", "1", "--max-num-tokens", "2048")
    said = run(trace, *sizes).stdout.splitlines()
    assert "; at most 1 sequence and 2,048 tokens an iteration" in said[1]
    assert said[-1] == (
        "In a batch: 0 of 1 iteration exceeded the budget of 2,048 tokens, and the 1 request reused exactly what had "
        "been estimated."
    )
    refused = run(trace, "--blocks-primary", "2").stdout.splitlines()
    assert refused[-1].startswith("NOTHING RAN: the 1 request needs more than the 2 primary blocks ")


def test_a_trace_is_replayed_with_the_sizes_that_were_asked_for() -> None:
    model = ("--layers", 32, "--kv-heads", 8, "--head-dim", 128)
    report = report_of(
        TINY, *map(str, model), "--blocks-primary", "1GiB", "--blocks-host", "64MiB", "--max-batch-size", "1"
    )
    shape = report["outcomes"][0]["shape"]
    assert (shape["blocks_primary"], shape["blocks_host"], shape["bytes_per_block"]) == (256, 16, 4 * 1024**2)
    assert report["outcomes"][0]["tokens"]["primary"] == 1584
    assert "brought back" in run(TINY).stdout


def test_json_is_what_the_models_say() -> None:
    report = report_of("--generate", "small", "--compare")
    assert [outcome["admission"] for outcome in report["outcomes"]] == ["batch", "one-by-one"]
    rates = [outcome["tokens"].pop("hit_rate") for outcome in report["outcomes"]]
    assert all(0 < rate < 1 for rate in rates)
    for outcome in report["outcomes"]:
        for reuse in (outcome["tokens"], outcome["blocks"]):
            reuse.pop("hit_rate", None)
            reuse.pop("hit_rate_host")
    assert ReplayReport.model_validate(report).outcomes[0].tokens.hit_rate == pytest.approx(rates[0])


def test_what_is_typed_comes_before_what_a_generated_workload_brings() -> None:
    shape = report_of("--generate", "small", "--blocks-host", "0", "--max-batch-size", "4")["outcomes"][0]["shape"]
    assert (shape["blocks_host"], shape["max_batch_size"], shape["blocks_primary"]) == (0, 4, 168)


def test_bytes_of_a_generated_workload_are_of_its_own_blocks(tmp_path: Path) -> None:
    config = tmp_path / "kvfix.yaml"
    config.write_text("kvfix: {replay: {tokens_per_block: 64, layers: 1, kv_heads: 1, head_dim: 1, dtype_bytes: 1}}")
    result = CliRunner().invoke(main, ["--config", str(config), "replay", "--generate", "small", "--json"])
    shape = json.loads(result.stdout)["outcomes"][0]["shape"]
    assert (shape["tokens_per_block"], shape["bytes_per_block"]) == (32, 64)


def test_settings_are_the_defaults_of_the_options(tmp_path: Path) -> None:
    config = tmp_path / "kvfix.yaml"
    config.write_text("kvfix: {replay: {blocks_primary: 300, blocks_host: 64MiB, bytes_per_block: 1048576}}")
    result = CliRunner().invoke(main, ["--config", str(config), "replay", str(TINY), "--json"])
    shape = json.loads(result.stdout)["outcomes"][0]["shape"]
    assert (shape["blocks_primary"], shape["blocks_host"]) == (300, 64)


def test_sweep_prints_a_row_for_each_size_and_draws_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    result = run("--generate", "small", "--sweep", "0,64,1MiB", "--bytes-per-block", "8192", "--plot", path)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()[:1].isdigit()][1:]
    assert [row[0] for row in rows] == ["0", "64", "128"]
    (ceiling,) = [line.split() for line in result.stdout.splitlines() if line.split()[0] == "ceiling"]
    assert ceiling == ["ceiling", "no", "limit", "73.40%"]
    assert path.exists()


@pytest.mark.parametrize(
    ("tier", "name", "row"),
    [
        ("built-in", "Host blocks: TensorRT-LLM's own host tier", "blocks evicted to host"),
        ("connector", "Host blocks: the offload connector's host tier", "blocks stored to host"),
    ],
)
def test_tables_and_pictures_name_the_tier(tmp_path: Path, tier: str, name: str, row: str) -> None:
    table = run("--generate", "small", "--host-tier", tier).stdout
    assert name in table
    assert row in table
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    sweep = run("--generate", "small", "--host-tier", tier, "--sweep", "0,64", "--plot", path)
    assert name in sweep.stdout
    texts = [line.strip().removeprefix("<!-- ").removesuffix(" -->") for line in path.read_text().splitlines()]
    title = name.removeprefix("Host blocks: ")
    assert any(text.startswith(title[0].upper() + title[1:]) for text in texts)
    assert "at most (a clairvoyant cache of that size)" in texts
    assert "ceiling (a cache without limit)" in texts


def test_what_came_from_a_remote_tier_is_shown_where_there_is_one() -> None:
    connector = "--generate", "small", "--host-tier", "connector"
    store = "--remote", "10000"
    assert "from the remote tier" in run(*connector, "--blocks-host", "60", *store).stdout
    assert "from the remote tier" not in run(*connector, "--blocks-host", "60").stdout
    assert "remote" in run(*connector, *store, "--sweep", "60").stdout
    assert "remote" not in run(*connector, "--sweep", "60").stdout


def test_a_sweep_fits_eighty_columns() -> None:
    size = ("--bytes-per-block", str(2**25))
    lines = run("--generate", "small", *size, "--sweep", "0,100,104857").stdout.splitlines()
    table = lines[3:8]
    assert " ".join(table[0].split()) == "host tier size reused from host gain at most to host back"
    assert all(len(line.rstrip()) <= 80 and "\u2026" not in line for line in table)


def test_what_was_read_from_standard_input_is_called_so() -> None:
    result = CliRunner().invoke(main, ["replay", "-"], input=TINY.read_bytes())
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "standard input"


def test_a_picture_that_cannot_be_written_is_an_error_of_usage_after_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    path.mkdir()
    assert run("--generate", "small", "--sweep", "0", "--plot", path).exit_code == 2
    path.rmdir()
    path.symlink_to("/dev/full")
    result = run("--generate", "small", "--sweep", "0", "--plot", path)
    assert result.exit_code == 2
    assert "ceiling" in result.stdout
    assert f"--plot is '{path}': it cannot be written: No space left on device" in result.output


def test_a_pool_that_nothing_fits_is_called_that() -> None:
    result = run("--generate", "small", "--blocks-primary", "10")
    last = result.stdout.splitlines()[-1]
    assert last.startswith("NOTHING RAN: each of the 200 requests needs more than the 10 primary blocks")
    assert result.exit_code == 2


def test_help_has_examples_and_a_short_name() -> None:
    result = run("-h")
    assert result.exit_code == 0
    assert "  trtllm-kvfix replay --generate small --compare\n" in result.stdout


def test_bad_lines_are_refused_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TINY.read_text() + "{\n")
    refused = run(path)
    assert refused.exit_code == 2
    assert "line 8: EOF while parsing" in refused.output
    assert report_of(path, "--skip-bad")["lines_bad"] == 1
    assert "1 bad line was left out" in run(path, "--skip-bad").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a TRACE or --generate"),
        (("--generate", "small", "GiB"), "give either a TRACE or --generate, not both: the TRACE is 'GiB'"),
        (("--generate", "small", "--compare", "--sweep", "0"), "--compare and --sweep exclude each other"),
        (("--generate", "small", "--blocks-host", "9", "--sweep", "0"), "--blocks-host and --sweep exclude each other"),
        ((str(TINY), "--seed", "1"), "--seed needs --generate, which is missing"),
        (("--generate", "small", "--skip-bad"), "--skip-bad needs a TRACE, which is missing"),
        (("--generate", "small", "--tokens-per-hash-id", "16"), "--tokens-per-hash-id needs a TRACE, which is missing"),
        (("--generate", "small", "--plot", "x.png"), "--plot draws the curve of a --sweep, which is missing"),
        (("--generate", "small", "--sweep", "0,1GiB"), "--sweep is '1GiB': bytes need the size of a block"),
        (("--generate", "small", "--sweep", ""), "--sweep is '': write a number of blocks"),
        (("--generate", "small", "--layers", "3", "--head-dim", "4"), "are needed together; missing: --kv-heads"),
        (
            ("--generate", "small", "--layers", "1", "--head-dim", "1", "--kv-heads", "1", "--bytes-per-block", "1"),
            "--bytes-per-block is 1, the model's shape gives 128",
        ),
        (
            ("--generate", "small", "--blocks-primary", "0"),
            "blocks_primary is 0: a window needs at least one primary block",
        ),
        (("--generate", "small", "--max-num-tokens", "4"), "max_num_tokens is 4: 8 sequences generating 1 tokens each"),
    ],
)
def test_bad_usage_exits_with_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_broken_promise_of_the_batch_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Replay.run

    def broken(self: Replay, on_finished: Any) -> ReplayOutcome:
        outcome = honest(self, on_finished)
        return outcome.model_copy(update={"budget": outcome.budget.model_copy(update={"promises_broken": 1})})

    monkeypatch.setattr(Replay, "run", broken)
    result = run("--generate", "small")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith(
        "FAILED: batch admission exceeded the budget in 0 of 46 iterations"
    )


INTERRUPTED = """
import os, signal
from trtllm_kvfix.cli import main
from trtllm_kvfix.errors import EXIT_INTERRUPTED
from trtllm_kvfix.tools.replay.engine import Replay

# A parent that runs in the background ignores ctrl-C, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
honest = Replay.run

def run(self, on_finished):
    def count(finished):
        if finished >= 30:
            os.kill(os.getpid(), signal.SIGINT)
    return honest(self, count)

Replay.run = run
main()
"""


def test_ctrl_c_prints_the_partial_result_and_exits_with_130(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script), "replay", "--generate", "small", "--compare", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 130, done.stderr
    report = json.loads(done.stdout)
    assert report["partial"]
    assert [outcome["partial"] for outcome in report["outcomes"]] == [True]
    assert 30 <= report["outcomes"][0]["requests"]["finished"] < 40


def test_ctrl_c_while_the_trace_is_read_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "read_trace", interrupted)
    result = run(TINY)
    assert (result.exit_code, result.output) == (
        EXIT_INTERRUPTED,
        "Interrupted while the trace was read; nothing was replayed.\n",
    )


def test_a_partial_report_says_so_and_is_not_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    honest = Replay.run
    monkeypatch.setattr(Replay, "run", lambda self, on: honest(self, on).model_copy(update={"partial": True}))
    result = run("--generate", "small", "--sweep", "0,64", "--plot", tmp_path / "curve.png")
    assert result.exit_code == 130
    assert "PARTIAL: interrupted" in result.stdout
    assert not (tmp_path / "curve.png").exists()
