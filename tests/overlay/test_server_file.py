"""The server's YAML on disk: errors name it, and what it says twice is refused."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests import fresh
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay import server_config
from trtllm_kvfix.overlay.server_config import without_section
from trtllm_kvfix.process import active

TWICE = "kvfix: {force: true}\nkv_connector_config: {connector_module: a}\nkv_connector_config: {connector_module: b}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.yaml"


@pytest.mark.parametrize("how", ["--config {}", "--config={}", "named"])
def test_the_file_is_found_by_its_content(how: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = file.with_name("other.yaml")
    other.write_text("a: 2\n")
    file.write_text("a: 1\n")
    arguments = how.format(file).split() if how != "named" else []
    monkeypatch.setattr(sys, "argv", ["serve", str(other), "missing.yaml", *arguments])
    assert server_config.file_of({"a": 1}, [str(file), None, 3] if how == "named" else []) == file
    assert server_config.file_of({"a": 3}, []) is None


@pytest.mark.parametrize("last", ["a59: 1", "a59: [1]", "a59: {x: 1}"])
def test_aliases_of_aliases_are_compared_once(last: str, file: Path) -> None:
    """In a process of its own: who follows each alias is busy for years."""
    file.write_text(
        "\n".join(["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{x: *a{i - 1}, y: [*a{i - 1}]}}" for i in range(1, 60))])
    )
    code = f"""
import sys, yaml
from trtllm_kvfix.overlay.server_config import file_of
document = yaml.safe_load(open(sys.argv[1]))
print(file_of(document, []), file_of(document | yaml.safe_load({last!r}), []))
"""
    command = [sys.executable, "-c", code, str(file)]
    done = fresh.run(command)
    assert done.stdout == f"{file} None\n", done.stderr


@pytest.mark.parametrize("how", ["--config {}", "--config={}", "{}", "file={}"])
def test_a_path_may_have_an_equals_sign(how: str, tmp_path: Path) -> None:
    file = tmp_path / "date=2026-01-01" / "server.yaml"
    file.parent.mkdir()
    file.write_text("kvfix: {fixs: {}}\n")
    with pytest.raises(SettingsError, match=f"unknown setting kvfix.fixs in {file}"):
        server_config.check(["trtllm-serve", *how.format(file).split()], {})


def test_a_script_in_one_argument_is_no_file() -> None:
    """It is longer than the system lets a name be."""
    script = f"{300 * 'x'} --config server.yaml"
    assert server_config.check(["bash", "-c", script], {}) == []


def test_a_file_with_an_impossible_date_is_refused_only_behind_its_option(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("a: 2026-99-99\n")
    with pytest.raises(SettingsError, match=rf"--config is {file}, which cannot be read: month must be in 1..12"):
        server_config.check(["trtllm-serve", "--config", str(file)], {})
    assert server_config.check(["trtllm-serve", str(file)], {}) == [], "an argument that only looks like the file"
    monkeypatch.setattr(sys, "argv", ["serve", str(file)])
    assert server_config.file_of({"a": 1}, []) is None


def test_what_it_says_twice_is_refused_with_its_name(file: Path) -> None:
    file.write_text(TWICE)
    with pytest.raises(SettingsError, match=rf"{file} has kv_connector_config more than once"):
        without_section(active, yaml.safe_load(TWICE), [str(file)])


def test_errors_of_the_section_name_the_file(file: Path) -> None:
    file.write_text("kvfix: {offload: 64KiB}\n")
    with pytest.raises(SettingsError, match=rf"kvfix.offload in {file} is '64KiB'; it has settings of its own"):
        without_section(active, yaml.safe_load(file.read_text()), [str(file)])


class ClickException(Exception):
    """Like click's: the command line shows only its message, and ends with the code."""

    exit_code = 1


@pytest.mark.parametrize("is_command", [True, False])
def test_a_command_line_ends_in_one_line(is_command: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_current_context(silent: bool) -> Any:
        return object() if is_command and silent else None

    click = SimpleNamespace(ClickException=ClickException, get_current_context=get_current_context)
    monkeypatch.setitem(sys.modules, "click", click)
    with pytest.raises(ClickException if is_command else SettingsError, match="no such setting") as caught:
        server_config.end(SettingsError("no such setting"))
    assert getattr(caught.value, "exit_code", None) == 2
