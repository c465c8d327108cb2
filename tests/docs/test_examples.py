"""Pages that show code, log lines, metrics or commands show what is in the code."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from trtllm_kvfix import cli
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.metrics.exporter import PREFIX

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PLACE = re.compile(r"%[-.\d]*[sdgfx%]")  # where a log line has a value


def fences(page: str, language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{page} shows no {language}"
    return found


def strings(tree: ast.AST) -> Iterator[str]:
    """Every text of a module, `\\0` where a value is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield PLACE.sub("\0", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)


COMMAND = re.compile(rf"trtllm-kvfix ({'|'.join(cli.COMMANDS)})\b")
WITH_COMMANDS = [
    "../README.md",
    *sorted(str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md") if COMMAND.search(file.read_text())),
]
TEXTS = [
    text for file in sorted((ROOT / "trtllm_kvfix").rglob("*.py")) for text in strings(ast.parse(file.read_text()))
]


def is_said(line: str) -> bool:
    """Whether some text of the package has the parts between the dots, in this order."""
    pattern = re.compile(".*".join(re.escape(part.strip(" ")) for part in line.split("…")), re.DOTALL)
    return any(pattern.search(text) for text in TEXTS)


def test_every_log_line_of_troubleshooting_is_in_the_code() -> None:
    lines = [line.strip() for fence in fences("troubleshooting.md", "text") for line in fence.splitlines()]
    assert len(lines) >= 12
    assert [line for line in lines if not is_said(line)] == []


def test_a_line_that_nobody_says_is_noticed() -> None:
    assert is_said("fix … stands down in this process: …")
    assert not is_said("fix … sits down in this process: …")
    assert not is_said("in this process: … stands down")


def test_troubleshooting_has_twelve_problems() -> None:
    headings = re.findall(r"^## (\d+)\. ", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert [int(number) for number in headings] == list(range(1, 13))


def metric_names() -> set[str]:
    suffix = {"counter": "_total", "gauge": ""}
    return {f"{PREFIX}{each.name}{suffix[each.kind]}" for each in counters.ALL} | {f"{PREFIX}fix_info"}


@pytest.mark.parametrize("page", ["troubleshooting.md", "metrics.md"])
def test_metrics_that_a_page_names_are_served(page: str) -> None:
    named = set(re.findall(rf"\b{PREFIX}\w+", (DOCS / page).read_text())) - {PREFIX}
    named -= {"trtllm_kvfix_hook"}
    assert named
    assert named - metric_names() == set()


def commands(text: str) -> Iterator[list[str]]:
    for line in re.findall(r"trtllm-kvfix ([a-z]+[^`\n|]*)", text):
        words = line.split("#")[0].split(" -- ")[0].split()
        yield [word for word in words if word != "--"]


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_that_a_page_names_exist_with_their_options(page: str) -> None:
    shown = [words for words in commands((DOCS / page).read_text()) if words[0] in cli.COMMANDS]
    assert shown
    context = click.Context(cli.main)
    for name, *words in shown:
        command = cli.main.get_command(context, name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} - known == set(), f"{page}: {name} {words}"


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_replays_of_a_page_that_give_sizes_in_bytes_give_the_size_of_a_block(page: str) -> None:
    replays = [words for words in commands((DOCS / page).read_text()) if words[0] == "replay"]
    in_bytes = [words for words in replays if re.search(r"\dMiB|\dGiB|\dTiB", " ".join(words))]
    assert [words for words in in_bytes if not {"--layers", "--bytes-per-block"} & set(words)] == []


def printed(code: str) -> list[str]:
    """Lines that the code prints in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()


@pytest.mark.parametrize("page", ["block-manager-guide.md", "block-manager.md"])
def test_code_of_a_page_runs_and_prints_what_it_says(page: str) -> None:
    code = "".join(fences(page, "python"))
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert expected
    assert len(expected) == code.count("\nprint(")
    assert printed(code) == expected


def test_events_are_published_as_their_page_says() -> None:
    pytest.importorskip("zmq")
    (code,) = fences("events.md", "python")
    anywhere = re.sub(r"tcp://\*:\d+", "tcp://127.0.0.1:*", code)  # a port of the page may be taken
    assert anywhere.count("127.0.0.1") == 2
    assert printed(anywhere) == []
