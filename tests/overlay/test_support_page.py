"""docs/support.md and the README say what is so: they are compared with the records, the settings and the counters."""

import re
from typing import Any

import pytest
import yaml

from tests.overlay.upstream_double import ROOT
from tests.overlay.variant_table import (
    RUN,
    UPSTREAM_SINCE,
    has_upstreams,
    hits_table,
    metrics_table,
    probed,
    releases_table,
    table,
)
from tests.standin.fixture import VARIANTS
from trtllm_kvfix import cli
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import releases
from trtllm_kvfix.overlay.fix import STATES
from trtllm_kvfix.overlay.launch import run
from trtllm_kvfix.settings import load, names, variable_of
from trtllm_kvfix.tools.selfcheck.steps import SCENARIOS

PAGE = (ROOT / "docs" / "support.md").read_text()


def test_table_of_fixes_is_what_the_probes_find() -> None:
    assert table() in PAGE, "run: python -m tests.overlay.variant_table"


def test_readme_says_what_hits_each_release() -> None:
    assert hits_table() in (ROOT / "README.md").read_text(), "run: python -m tests.overlay.variant_table"


def test_what_readme_leaves_out_as_fixed_upstream_is_what_the_page_says() -> None:
    section = PAGE.partition("| upstream has it since |")[2].partition("\n### ")[0]
    since = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|$", section, re.MULTILINE))
    for fix_id in FIX_IDS:
        named = tuple(re.findall(r"\d\.\d\.\d\w*(?:\.post\d)?", since[fix_id]))
        assert named == UPSTREAM_SINCE.get(fix_id, ()), fix_id


def test_each_release_that_dynamo_pins_is_in_a_row_of_readme() -> None:
    section = PAGE.partition("\n### Dynamo's releases\n")[2].partition("\n## ")[0]
    pinned = re.findall(r"^\| (\d\.\d+)\S*(?:, \S+)? \| (\d\.\d\.\d\w+(?:\.post\d)?)", section, re.MULTILINE)
    assert len(pinned) >= 11
    for dynamo, release in pinned:
        (run,) = [run for run in RUN if re.search(rf"Dynamo .*\b{re.escape(dynamo)}(?!\d)", run.said)]
        bounds = [releases.key_of(each) or () for each in (run.first, release, run.last)]
        assert bounds == sorted(bounds), f"Dynamo {dynamo} pins {release}, which is not in the row {run.said}"


def test_a_line_of_releases_has_upstream_s_fix_since_its_own_first_one() -> None:
    found = {version: has_upstreams("computed-blocks", version) for version in
             ("1.1.0", "1.2.0", "1.2.1", "1.3.0rc5.post1", "1.3.0rc5.post2", "1.3.0rc6", "1.3.0rc10", "1.3.0rc11",
              "1.4.0rc1")}  # fmt: skip
    has = [version for version, has in found.items() if has]
    assert has == ["1.2.1", "1.3.0rc5.post2", "1.3.0rc11", "1.4.0rc1"]


def test_table_of_metrics_has_every_counter() -> None:
    assert metrics_table() in PAGE, "run: python -m tests.overlay.variant_table"


def test_table_of_releases_is_what_doctor_says() -> None:
    assert releases_table() in PAGE, "run: python -m tests.overlay.variant_table"


def test_every_fix_has_its_fallback_on_the_page() -> None:
    section = PAGE.partition("\n## When a fix fails\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)) == FIX_IDS


def test_the_states_of_a_fix_are_on_the_page_as_status_explains_them() -> None:
    section = PAGE.partition("\n## States of a fix\n")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| \*([\w-]+)\* \| (.*) \|$", section, re.MULTILINE)) == STATES


def test_every_fix_stands_beside_its_hazard() -> None:
    page = (ROOT / "docs" / "hazards" / "README.md").read_text()
    rows = dict(re.findall(r"^\| \[(H\d+)\]\(.*?\) (\|.*)$", page, re.MULTILINE))
    assert [fix.id for fix in ALL if f"`{fix.id}`" not in rows.get(fix.hazard, "")] == []


@pytest.mark.parametrize("variant", [*VARIANTS, "mangled"])
def test_variant_is_recognised_and_what_cannot_be_told_is_unknown(variant: str) -> None:
    shown, states = probed(variant)
    assert set(states) == {fix.id for fix in ALL}
    if variant == "mangled":
        assert "unknown" in states.values()
    else:
        assert shown == variant
        assert states == {fix.id: fix.expected[variant].value for fix in ALL}


def test_every_setting_of_the_overlay_is_on_the_page_with_its_default() -> None:
    section = PAGE.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*)$", section, re.MULTILINE))
    settings = load(environ={}).model_dump()
    for name in names():
        if name[0] in ("replay", "fixes", "offload"):
            continue
        row = rows.pop(".".join(name))
        assert f"`{variable_of(name)}`" in row
        value: Any = settings
        for part in name:
            value = value[part]
        default = row.split(" | ")[1]
        shown = yaml.safe_dump(value).splitlines()[0].strip("'")  # `off` needs no quotes: a bare one is read alike
        assert value is None or default == f"`{shown}`"
    assert list(rows) == ["fixes.ID"]


def test_every_option_of_run_is_on_the_page() -> None:
    for option in run.params:
        for name in option.opts:
            assert not name.startswith("--") or f"`{name}" in PAGE or f" {name} " in PAGE, name


def test_configuration_on_the_page_is_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        settings = load(environ={}, section=yaml.safe_load(block)["kvfix"])
        assert settings.fixes.of("input-copy-fence") == "off"


def test_commands_of_the_page_exist() -> None:
    commands = set(re.findall(r"trtllm-kvfix (\w+)", PAGE)) - {"s"}
    assert commands <= set(cli.COMMANDS)


ROLLOUT = (ROOT / "docs" / "rollout.md").read_text()


def test_the_page_of_a_rollout_observes_what_can_be_observed() -> None:
    block = next(each for each in re.findall(r"```yaml\n(.*?)```", ROLLOUT, re.DOTALL) if "observe" in each)
    settings = load(environ={}, section=yaml.safe_load(block)["kvfix"])
    for fix in ALL:
        choice = "off" if fix.counting_replacements is None else "observe"
        assert settings.fixes.of(fix.id) == choice, f"docs/rollout.md: {fix.id} has to be on {choice} there"


def test_the_page_of_a_rollout_names_scenarios_and_metrics_that_exist() -> None:
    for scenario in SCENARIOS:
        assert f"`{scenario.name}`" in ROLLOUT and f"`{scenario.fix_id}`" in ROLLOUT
    known = {each.name for each in counters.ALL}
    assert set(re.findall(r"`(\w+)_total`", ROLLOUT)) <= known
    assert {f"{name}_seconds" for name in re.findall(r"`(\w+_wait)`", ROLLOUT)} <= known
