"""Settings: which source comes first, and what is refused with which words."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.settings import FixChoices, ReplaySettings, Settings, as_variables, load, names, variable_of

# A value other than the default, as text and as what it means, where a number will not do.
SAMPLES: dict[str, tuple[str, object]] = {
    "copy_by": ("kernel", "kernel"),
    "verify": ("sample", "sample"),
    "host_tier": ("connector", "connector"),
    "host_admission": ("all", "all"),
    "admission": ("all", "all"),
    "huge_pages": ("false", False),
    "control_file": ("switches", "switches"),
    "enabled": ("false", False),
    "force": ("true", True),
    "manager": ("native", "native"),
    "native_host_admission": ("adaptive", "adaptive"),
    "canary": ("observe", "observe"),
    "fixes": ("off", "off"),
    "staging_mode": ("snapshot", "snapshot"),
    "runtime_dir": ("/elsewhere", "/elsewhere"),
    "record": ("requests.jsonl", "requests.jsonl"),
    "record_bytes_max": ("2GiB", 2 << 30),
    "kind": ("mooncake", "mooncake"),
    "master": ("there:1", "there:1"),
    "protocol": ("rdma", "rdma"),
    "host": ("here", "here"),
    "model": ("a name", "a name"),
    "shared_adapters": ("true", True),
}


def yaml_file(folder: Path, text: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(text)
    return file


def test_without_any_source_the_defaults_hold() -> None:
    assert load(environ={}) == Settings()


def test_environment_comes_before_file_and_file_before_default(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "kvfix:\n  replay:\n    blocks_primary: 7\n    blocks_host: 8\n")
    replay = load(file, {"TRTLLM_KVFIX_REPLAY_BLOCKS_PRIMARY": "9"}).replay
    assert (replay.blocks_primary, replay.blocks_host) == (9, 8)
    assert replay.tokens_per_block == ReplaySettings().tokens_per_block


def test_the_variable_names_a_file_unless_one_is_given(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "kvfix: {replay: {blocks_host: 3}}")
    environ = {"TRTLLM_KVFIX_CONFIG": str(file)}
    assert load(environ=environ).replay.blocks_host == 3
    (tmp_path / "other").mkdir()
    given = yaml_file(tmp_path / "other", "kvfix: {replay: {blocks_host: 4}}")
    assert load(given, environ).replay.blocks_host == 4


def test_a_variable_set_to_nothing_names_no_file() -> None:
    """`ENV TRTLLM_KVFIX_CONFIG=` in a container does this."""
    assert load(None, {"TRTLLM_KVFIX_CONFIG": ""}) == Settings()


def test_section_with_nothing_in_it_says_nothing(tmp_path: Path) -> None:
    assert load(yaml_file(tmp_path, "kvfix: {fixes: {}, offload: {remote: {}}}"), {}) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kvfix: {fixs: {}}", "unknown setting kvfix.fixs in .*; did you mean kvfix.fixes"),
        ("kvfix: {fixes: {token-budgte: {}}}", "unknown setting kvfix.fixes.token-budgte in .*token-budget"),
        ("kvfix: {metrics_port: {}}", "kvfix.metrics_port is {}"),
    ],
)
def test_name_with_nothing_below_it_is_looked_at_all_the_same(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(yaml_file(tmp_path, text), {})


def test_other_sections_of_the_file_belong_to_others(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "kv_cache_config: {dtype: fp8}\nkvfix: {replay: {blocks_host: 3}}")
    assert load(file, {}).replay.blocks_host == 3


def test_every_setting_can_be_unset_or_set_by_its_variable() -> None:
    assert load(environ={"TRTLLM_KVFIX_REPLAY_LAYERS": "null"}).replay.layers is None
    for name in names():
        variable = "TRTLLM_KVFIX_" + "_".join(name).upper().replace("-", "_")
        text, value = SAMPLES.get(name[0], SAMPLES.get(name[-1], ("11", 11)))
        found: Any = load(environ={variable: text}).model_dump()
        for part in name:
            found = found[part]
        assert found == value, variable


def test_unknown_variable_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(SettingsError) as caught:
        load(environ={"TRTLLM_KVFIX_REPLAY_BLOCK_HOST": "3"})
    unknown, hint = str(caught.value).split("; ")
    assert unknown == "unknown setting TRTLLM_KVFIX_REPLAY_BLOCK_HOST in the environment"
    assert hint == "did you mean TRTLLM_KVFIX_REPLAY_BLOCKS_HOST?"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TRTLLM_KVFIX_REPLAY_BLOCKS_HOST": "many"}, "TRTLLM_KVFIX_REPLAY_BLOCKS_HOST is 'many': "),
        ({"TRTLLM_KVFIX_REPLAY_BLOCKS_HOST": "yes"}, "TRTLLM_KVFIX_REPLAY_BLOCKS_HOST is True: "),
        ({"TRTLLM_KVFIX_REPLAY_BLOCKS_HOST": "2026-99-99"}, "TRTLLM_KVFIX_REPLAY_BLOCKS_HOST is '2026-99-99': "),
        ({"TRTLLM_KVFIX_REPLAY_BLOCKS_HOST": "[3"}, "TRTLLM_KVFIX_REPLAY_BLOCKS_HOST is '[3': "),
        ({"TRTLLM_KVFIX_REPLAY_BLOCKS_HOST": "-1"}, "TRTLLM_KVFIX_REPLAY_BLOCKS_HOST is -1: "),
        (
            {"trtllm_kvfix_metrics_port": "1"},
            "unknown setting trtllm_kvfix_metrics_port in the environment; did you mean TRTLLM_KVFIX_METRICS_PORT?",
        ),
        (
            {"TRTLLM_KVFIX_Config": "x"},
            "unknown setting TRTLLM_KVFIX_Config in the environment; did you mean TRTLLM_KVFI",
        ),
        ({"TRTLLM_KVFIX_ENABLED": "0"}, "TRTLLM_KVFIX_ENABLED is 0: write true or false, without quotes"),
        ({"TRTLLM_KVFIX_ENABLED": "'no'"}, "TRTLLM_KVFIX_ENABLED is 'no': write true or false, without quotes"),
        ({"TRTLLM_KVFIX_METRICS_PORTS": ""}, "unknown setting TRTLLM_KVFIX_METRICS_PORTS in the environment; did you "),
        ({"TRTLLM_KVFIX_METRICS_PORT": "070"}, "TRTLLM_KVFIX_METRICS_PORT is '070': YAML reads 070 as 56; write the "),
        ({"TRTLLM_KVFIX_METRICS_PORT": "1:30"}, "TRTLLM_KVFIX_METRICS_PORT is '1:30': YAML reads 1:30 as 90; write "),
        ({"TRTLLM_KVFIX_METRICS_PORT": "9_0"}, "TRTLLM_KVFIX_METRICS_PORT is '9_0': YAML reads 9_0 as 90; write the n"),
        (
            {"TRTLLM_KVFIX_METRICS_PORT": "0x10"},
            "TRTLLM_KVFIX_METRICS_PORT is '0x10': YAML reads 0x10 as 16; write the",
        ),
        (
            {"TRTLLM_KVFIX_AGREEMENT_TIMEOUT_S": "1:30.5"},
            "TRTLLM_KVFIX_AGREEMENT_TIMEOUT_S is '1:30.5': YAML reads 1:3",
        ),
        (
            {"TRTLLM_KVFIX_RUNTIME_DIR": "run/server"},
            "TRTLLM_KVFIX_RUNTIME_DIR is 'run/server': each process would look for it in a folder of its own; write an",
        ),
        (
            {"TRTLLM_KVFIX_CONFIG": "missing.yaml"},
            "settings file missing.yaml, which TRTLLM_KVFIX_CONFIG names, cannot be read: No such file or directory",
        ),
        (
            {"TRTLLM_KVFIX_CONFIG": "/dev/zero"},
            "settings file /dev/zero, which TRTLLM_KVFIX_CONFIG names, cannot be read: it is not a regular file",
        ),
        (
            {"TRTLLM_KVFIX_CONFIG": "/dev/null"},
            "settings file /dev/null, which TRTLLM_KVFIX_CONFIG names, cannot be read: it is not a regular file",
        ),
    ],
)
def test_bad_environment_is_refused_by_name(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(environ=environ)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kvfix: {replay: {block_host: 3}}", "did you mean kvfix.replay.blocks_host?"),
        ("kvfix: {zzzzzzzzzzzzzzzzzzzzzzzzzz: 3}", "known are kvfix.agreement_timeout_s, "),
        ("kvfix: {replay: {blocks_host: 1.5}}", "kvfix.replay.blocks_host is 1.5: "),
        ("kvfix: {replay: 3}", "is 3; it has settings of its own, such as kvfix.replay.blocks_host"),
        ("kvfix: {offload: 64KiB}", "is '64KiB'; it has settings of its own, such as kvfix.offload."),
        ("kvfix: {offload: {host_bytes: 1GiB, host_bytes: 2GiB}}", "has kvfix.offload.host_bytes more than once"),
        ("kvfix: {force: true}\nkvfix: {enabled: true}", "has kvfix more than once"),
        ("kvfix: {offload: {host_bytes: -1GiB}}", "is '-1GiB': write bytes with a unit such as 55GiB"),
        ("kvfix: {offload: {host_bytes: 1e6}}", "is '1e6': write bytes with a unit such as 55GiB"),
        ("kvfix: {tuning: {staging_mode: device_table}}", "kvfix.tuning.staging_mode is 'device_table': "),
        ("kvfix: {tuning: {staging_mode: device_table}}", "it is gone, because an early copy is faster"),
        ("kvfix: {record: ''}", "kvfix.record is '': write the name of a file, or null for none"),
        ("kvfix: {offload: {control_file: ' '}}", "kvfix.offload.control_file is ' ': write the name of a file, or nu"),
        ("kvfix: {record_bytes_max: 0}", "kvfix.record_bytes_max is 0: write a size from 1 byte on; with "),
        ("kvfix: {record_bytes_max: 0.0GiB}", "kvfix.record_bytes_max is '0.0GiB': write a size from 1 byte on; "),
        ("kvfix: {fixes: [[[[[[[[[[[[1]]]]]]]]]]]]}", "is [[[[[[[...]]]]]]]; it has settings of its own"),
        ("kvfix: {tuning: {staging_mode: " + 1000 * "x" + "}}", "xxx...xxx"),
        ("kvfix: &all {replay: *all}", "unknown setting kvfix.replay.replay.replay.replay"),
        ("kv_fix: {}", "has no mapping `kvfix:` at its top level"),
        ("- 1", "has no mapping `kvfix:` at its top level"),
        ("a: [", "cannot be read: line 1, column 5: expected the node content"),
        ("a: 2026-99-99", "cannot be read: month must be in 1..12"),
        ("a: !!bool maybe", "cannot be read: a tag does not fit its value (KeyError: 'maybe')"),
        ("a: " + 1_000 * "[", "cannot be read: mappings and lists are nested too deeply"),
        ("a: \0", "cannot be read: unacceptable character #x0000: special characters are not allowed"),
    ],
)
def test_bad_file_is_refused_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    file = yaml_file(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(file, {})
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_of_lists_are_shortened_as_a_whole() -> None:
    """Each list is short enough for `reprlib`, and each of its lists."""
    value: Any = 150 * "x"
    for _ in range(7):
        value = 6 * [value]
    with pytest.raises(SettingsError, match=r"kvfix.metrics_port is \[\[.*\.\.\.: Input should be") as caught:
        load(environ={}, section={"metrics_port": value})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", list(map(variable_of, names())))
def test_a_variable_that_is_set_to_nothing_is_not_set(name: str) -> None:
    assert load(environ={name: ""}) == Settings()


def test_a_text_in_a_variable_counts_to_its_end() -> None:
    """YAML would take the rest for a comment, and name another file."""
    settings = load(environ={"TRTLLM_KVFIX_RECORD": "/data/my #1.jsonl", "TRTLLM_KVFIX_METRICS_PORT": "9400 # ours"})
    assert (settings.record, settings.metrics_port) == ("/data/my #1.jsonl", 9400)
    assert load(environ={"TRTLLM_KVFIX_RECORD": "#1.jsonl"}).record == "#1.jsonl"
    assert load(environ={"TRTLLM_KVFIX_RECORD": "'/data/my' # ours"}).record == "/data/my"
    with pytest.raises(SettingsError, match="is 'observe # ours': Input should be"):
        load(environ={"TRTLLM_KVFIX_FIXES_TOKEN_BUDGET": "observe # ours"})


def test_an_option_that_is_given_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^--enabled is None: "):
        load(environ={}, options={"TRTLLM_KVFIX_ENABLED": ("--enabled", "")})


def test_numbers_in_a_file_are_read_as_they_look(tmp_path: Path) -> None:
    file = tmp_path / "x{}.yaml"
    file.write_text("other: 070\nkvfix:\n  agreement_timeout_s: 0.5\n  replay: {blocks_host: 010}\n")
    with pytest.raises(SettingsError, match=r"x\{\}.yaml, line 4: YAML reads 010 as 8; write the number in decimal"):
        load(file, {})
    file.write_text("other: 070\nkvfix:\n  agreement_timeout_s: 0.5\n  replay: {blocks_host: 0}\n")
    assert load(file, {}).replay.blocks_host == 0


def test_aliases_of_aliases_are_read_once() -> None:
    """In a process of its own: who follows each alias is busy for years."""
    lines = ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 60)), "kvfix: *a59"]
    code = "import sys; from trtllm_kvfix.settings import refuse_misread; print(refuse_misread(sys.stdin.read(), 'it'))"
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(lines), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "None\n", done.stderr


def test_a_section_that_was_read_already_comes_before_the_file_and_after_the_environment(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "kvfix: {metrics_port: 1, tuning: {staging_slots: 5}}")
    section = {"metrics_port": 2, "fixes": {"token-budget": False}}
    settings = load(file, {"TRTLLM_KVFIX_FORCE": "true"}, section=section)
    assert (settings.metrics_port, settings.tuning.staging_slots, settings.force) == (2, 5, True)
    assert settings.fixes.of("token-budget") == "off"
    assert load(file, {"TRTLLM_KVFIX_METRICS_PORT": "3"}, section=section).metrics_port == 3


def test_settings_travel_in_variables_and_only_what_differs() -> None:
    assert as_variables(Settings()) == {}
    settings = load(section={"fixes": {"nixl-listener": "on"}, "metrics_port": 9, "force": True}, environ={})
    assert as_variables(settings) == {
        "TRTLLM_KVFIX_FIXES_NIXL_LISTENER": "on",
        "TRTLLM_KVFIX_METRICS_PORT": "9",
        "TRTLLM_KVFIX_FORCE": "true",
    }
    assert load(environ=as_variables(settings)) == settings


@pytest.mark.parametrize(
    "path",
    [
        "/data/" + 40 * "of many words " + "/monday.jsonl",
        "/data/two\nlines, and\n\nthree",
        "/data/a #1",
        "/data: a/b",
        "/data/\udcff",
        "/data/caf\u00e9 \U0001f600",
        "~",
        "070",
        " of spaces ",
    ],
)
def test_a_path_of_any_kind_travels_whole(path: str) -> None:
    """YAML folds a long text at its spaces, and its first line alone would name another file."""
    settings = load(environ={}, section={"record": path, "runtime_dir": f"/{path}"})
    assert load(environ=as_variables(settings)) == settings
    assert not any("\n" in text for text in as_variables(settings).values())


def test_unknown_fix_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match=r"did you mean kvfix.fixes.staged-offsets-v1\?"):
        load(section={"fixes": {"staged-offset-v1": "off"}}, environ={})
    with pytest.raises(
        SettingsError, match=r"kvfix.fixes.token-budget is 'maybe': Input should be 'auto', 'on', 'off' or 'observe'"
    ):
        load(section={"fixes": {"token-budget": "maybe"}}, environ={})
    with pytest.raises(ValidationError, match="there is no fix staged-offset-v1; known are staged-offsets-v1, "):
        FixChoices.model_validate({"staged-offset-v1": "off"})


def test_a_fix_that_is_not_named_is_on_auto() -> None:
    choices = FixChoices.model_validate({"token-budget": "off"})
    assert {fix_id: choices.of(fix_id) for fix_id in FIX_IDS} == dict.fromkeys(FIX_IDS, "auto") | {
        "token-budget": "off"
    }
    assert FixChoices.model_validate({}) == FixChoices()
