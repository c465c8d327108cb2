"""Each source of settings is looked at by itself: a bad value is refused also where a better source overrides it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trtllm_kvfix
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay import child_environment, server_config
from trtllm_kvfix.settings import load, unset, variable_of

GOOD = {"enabled": True, "force": False, "metrics_port": 9400, "fixes.token-budget": "off"}
BAD = {
    "enabled": ["false", 0, "off", "no", None],
    "force": ["yes", 1],
    "metrics_port": ["9400", 0, 99999],
    "fixes.token-budget": ["maybe", 3],
}
CASES = [(key, value) for key, values in BAD.items() for value in values]


def section(key: str, value: object) -> dict[str, Any]:
    *groups, leaf = key.split(".")
    tree: dict[str, Any] = {leaf: value}
    for group in reversed(groups):
        tree = {group: tree}
    return tree


def variable(key: str) -> str:
    return variable_of(tuple(key.split(".")))


def overridden(key: str) -> dict[str, str]:
    """What overrides the value, as text: `run` does this with `enabled` for every process."""
    return {variable(key): json.dumps(GOOD[key])}


def by_file(folder: Path, key: str, value: object) -> None:
    file = folder / "settings.yaml"
    file.write_text(json.dumps({"kvfix": section(key, value)}))
    load(file, overridden(key))


def by_named_file(folder: Path, key: str, value: object) -> None:
    file = folder / "settings.yaml"
    file.write_text(json.dumps({"kvfix": section(key, value)}))
    load(None, {"TRTLLM_KVFIX_CONFIG": str(file), **overridden(key)}, section=section(key, GOOD[key]))


def by_section(_: Path, key: str, value: object) -> None:
    load(environ=overridden(key), section=section(key, value), where="server.yaml")


def by_servers_file(folder: Path, key: str, value: object) -> None:
    """As `run` reads it, which has set `enabled` by then."""
    file = folder / "server.yaml"
    file.write_text(json.dumps({"kvfix": section(key, value)}))
    server_config.check(["trtllm-serve", "--config", str(file)], {"TRTLLM_KVFIX_ENABLED": "true", **overridden(key)})


def by_variable(_: Path, key: str, value: object) -> None:
    load(environ={variable(key): json.dumps(value)}, options={variable(key): ("--option", json.dumps(GOOD[key]))})


def by_variable_of_a_program(folder: Path, key: str, value: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in child_environment.carried():
            patch.delenv(name)
        patch.setenv(variable(key), json.dumps(value))
        patch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(folder))
        try:
            trtllm_kvfix.enable(**section(key, GOOD[key]))
        finally:
            trtllm_kvfix.disable()
            unset(child_environment.carried())


def by_option(_: Path, key: str, value: object) -> None:
    load(environ={}, options={variable(key): ("--option", json.dumps(value))})


Source = Callable[[Path, str, Any], None]
# Each with how its error begins.
SOURCES: dict[Source, str] = {
    by_file: "{folder}/settings.yaml: kvfix.{key} is ",
    by_named_file: "{folder}/settings.yaml: kvfix.{key} is ",
    by_section: "server.yaml: kvfix.{key} is ",
    by_servers_file: "{folder}/server.yaml: kvfix.{key} is ",
    by_variable: "{variable} is ",
    by_variable_of_a_program: "{variable} is ",
    by_option: "--option is ",
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("key", "value"), CASES)
def test_a_bad_value_is_refused_although_it_is_overridden(
    tmp_path: Path, source: Source, key: str, value: object
) -> None:
    with pytest.raises(SettingsError) as caught:
        source(tmp_path, key, value)
    assert str(caught.value).startswith(SOURCES[source].format(folder=tmp_path, key=key, variable=variable(key)))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("key", BAD)
def test_a_good_value_passes(tmp_path: Path, source: Source, key: str) -> None:
    source(tmp_path, key, GOOD[key])
