"""Every way back that the pages name, in the set-up that they ship: there, and back again, with the probes and a load.

The pod is strict (KVFIX_STRICT=1), as in the last step of a rollout. Lines and cells are read from the pages.
"""

import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.overlay.upstream_double import ROOT
from tests.pod import ALL_OFF, TRTLLM_SERVE, Pod, Served
from tests.standin.fixture import STANDIN
from trtllm_kvfix.overlay import hook_file

DOCS = ROOT / "docs"
SCRIPT = STANDIN / "bin" / "trtllm-serve"
V1 = "staged-offsets-v1"
V1_VARIABLE = "TRTLLM_KVFIX_FIXES_STAGED_OFFSETS_V1"
V2 = "staged-offsets-v2"
# Stable 1.2, and the newest source with its trim. Whether the load shows it where nothing is mended: in the newest,
# upstream has mended what this load reaches.
NEWEST = "F"
CORRUPTS = {"B": True, NEWEST: False}


def section(page: str, heading: str) -> str:
    return (DOCS / page).read_text().partition(f"\n{heading}\n")[2].partition("\n## ")[0]


def kubectl_lines() -> list[tuple[str, str]]:
    """Each way there, with its way back."""
    (fence,) = re.findall(r"```sh\n(.*?)```", section("containers.md", "### Going back"), re.DOTALL)
    lines = fence.splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


def file_of_the_page(key: str) -> str:
    """The whole file that the page shows with this setting."""
    fences = re.findall(r"```yaml\n(.*?)```", section("containers.md", "### Going back"), re.DOTALL)
    (file,) = (fence for fence in fences if key in yaml.safe_load(fence)["kvfix"])
    return str(file)


def cells() -> dict[str, dict[str, str]]:
    """The table of docs/rollout.md: what is off, and how, with a fix for ID."""
    table = (DOCS / "rollout.md").read_text().partition("To go back, restart")[2].partition("\n\n")[2]
    first, _, *rows = [[each.strip(" `") for each in row.strip("| ").split(" | ")] for row in table.splitlines()[:5]]
    assert first[0] == "without" and len(rows) == 3
    named = {row[0]: dict(zip(first[1:], row[1:], strict=True)) for row in rows}
    return {
        what: {
            how: cell.replace("FIXES_ID", V1_VARIABLE.removeprefix("TRTLLM_KVFIX_")).replace("ID", V1)
            for how, cell in row.items()
        }
        for what, row in named.items()
    }


def strict_pod(folder: Path, variant: str) -> Pod:
    """A manifest that is applied for the first time is not: an unknown probe would keep the pod from starting."""
    pod = Pod(folder, variant)
    assert pod.variables["KVFIX_STRICT"] == "0"
    pod.variables["KVFIX_STRICT"] = "1"
    return pod


def is_mended(served: Served) -> None:
    served.pass_probes()
    states = served.states()
    assert "applied" in states.values() and "off" not in states.values()
    assert served.corrupt() == 0
    assert (served.status()["fixes"], "WITHOUT" in served.log()) == (states, False)
    assert 'trtllm_kvfix_enabled{rank="0"} 1.0' in served.metrics()


def has_no_fix(served: Served, variant: str = "B") -> None:
    served.pass_probes()
    assert served.states() == ALL_OFF
    assert (served.corrupt() > 0) == CORRUPTS[variant]
    entry = served.status()
    assert (entry["enabled"], entry["fixes"]) == (False, ALL_OFF)
    assert "rank 0 of 1 runs WITHOUT the fixes" in served.log()
    assert 'trtllm_kvfix_enabled{rank="0"} 0.0' in served.metrics()


def lacks_one(served: Served, word: str = "off", lacking: str = V1) -> None:
    served.pass_probes()
    states = served.states()
    assert "applied" in states.values()
    assert [fix_id for fix_id, state in states.items() if state == word] == [lacking]
    assert served.status()["fixes"] == states
    assert f"{'off' if word == 'off' else 'observing'}: {lacking}" in served.log()


@pytest.mark.parametrize("variant", CORRUPTS)
@pytest.mark.parametrize(("there", "back"), kubectl_lines())
def test_lines_of_kubectl(tmp_path: Path, variant: str, there: str, back: str) -> None:
    pod = strict_pod(tmp_path, variant)
    if variant == NEWEST:
        pod.files["server.yaml"] += "  use_kv_cache_manager_v2: true\n"  # the default since 1.4
    shipped = pod.set_up()
    pod.kubectl(there)
    assert pod.set_up() != shipped
    with pod.served() as served:
        if "ENABLED" in there:
            has_no_fix(served, variant)
        elif V1_VARIABLE not in there:
            lacks_one(served, lacking=V2)
        elif variant == "B":
            lacks_one(served)
        else:
            served.pass_probes()
            assert served.states()[V1] == "fixed-upstream", "upstream's own fix stays"
            assert served.states()[V2] == "applied", "the fix of the manager that serves"
    pod.kubectl(back)
    assert pod.set_up() == shipped
    if "ENABLED" in there:  # each way back leads to the same pod: one start of each variant shows what it is
        with pod.served() as served:
            is_mended(served)


@pytest.mark.parametrize("key", ["enabled", "fixes"])
def test_the_file_of_the_fixes(tmp_path: Path, key: str) -> None:
    """The way back is the file as it was, and so the pod of the lines above."""
    pod = strict_pod(tmp_path, "B")
    pod.files["kvfix.yaml"] = file_of_the_page(key)
    with pod.served() as served:
        if key == "enabled":
            has_no_fix(served)
        else:
            lacks_one(served)


@pytest.mark.parametrize("how", ["option of `run", "variable", "below `kvfix:` in a file"])
@pytest.mark.parametrize(("what", "word"), [("one fix", "off"), ("one fix, counting", "observing")])
def test_ways_of_the_rollout(tmp_path: Path, what: str, word: str, how: str) -> None:
    """The file is the server's own here: it may have the section as well."""
    pod, cell, options = strict_pod(tmp_path, "B"), cells()[what][how], list[str]()
    if how.startswith("option"):
        options = cell.split()
    elif how == "variable":
        name, _, value = cell.partition("=")
        pod.variables[name] = value
    else:
        pod.files["server.yaml"] += f"kvfix: {{{cell}}}\n"
    with pod.served(options) as served:
        lacks_one(served, word)


@pytest.mark.parametrize("file", ["kvfix: {fixs: {}}\n", "kvfix: {fixes: {\n"], ids=["refused", "unreadable"])
def test_the_switch_works_where_nothing_else_does(tmp_path: Path, file: str) -> None:
    """A file of settings that is refused or cannot be read, and a section in the server's own file that is refused."""
    pod = strict_pod(tmp_path, "B")
    pod.files["kvfix.yaml"] = file
    pod.files["server.yaml"] += "kvfix: {enabled: 'false'}\n"
    name, _, value = cells()["any fix"]["variable"].partition("=")
    pod.variables |= {name: value, "TRTLLM_KVFIX_X": "1"}
    with pod.served() as served:
        served.pass_probes()
        assert served.states() == ALL_OFF
        assert "`kvfix:` in its configuration is ignored. With the switch on, it would be refused" in served.log()


def test_the_server_s_own_file_switches_them_off(tmp_path: Path) -> None:
    """Whatever the variable says."""
    pod = strict_pod(tmp_path, "B")
    pod.variables["TRTLLM_KVFIX_ENABLED"] = "true"
    pod.files["server.yaml"] += f"kvfix: {{{cells()['any fix']['below `kvfix:` in a file']}}}\n"
    with pod.served() as served:
        has_no_fix(served)


def test_the_hook_of_enable(tmp_path: Path) -> None:
    """No `run`: the server itself is the entry point, in an environment whose hook is installed."""
    pod = strict_pod(tmp_path, "B")
    site = tmp_path / "site"
    site.mkdir()
    hook = hook_file.hook_file(site)
    hook_file.write(hook)
    starts = f"import runpy, site; site.addsitedir({str(site)!r}); runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    pod.installs("trtllm-serve", f'exec {sys.executable} -c "{starts}" "$@"')
    pod.entry_point = []
    pod.files["server.yaml"] += "kvfix: {}\n"
    pod.variables["TRTLLM_KVFIX_ENABLED"] = "false"
    with pod.served() as served:
        has_no_fix(served)
    del pod.variables["TRTLLM_KVFIX_ENABLED"]
    pod.variables[V1_VARIABLE] = "off"
    with pod.served() as served:
        lacks_one(served)
    del pod.variables[V1_VARIABLE]
    with pod.served() as served:
        is_mended(served)


def test_a_start_without_run_is_as_it_was(tmp_path: Path) -> None:
    """The shipped server.yaml is TensorRT-LLM's alone, and nothing of ours runs."""
    pod = strict_pod(tmp_path, "B")
    pod.entry_point = []
    with pod.served() as served:
        assert served.get("http", "/health") == "null"
        with pytest.raises(OSError, match="refused"):
            served.metrics()
        assert served.log() == ""


DISPLACES = """
from tensorrt_llm._torch.pyexecutor import resource_manager
from tensorrt_llm.commands import serve
kind = resource_manager.KVCacheManager
kind.copy_batch_block_offsets = kind.copy_batch_block_offsets.__kvfix_original__
serve.main()
"""


def test_a_seam_that_a_plugin_takes_is_told_everywhere(tmp_path: Path) -> None:
    pod = strict_pod(tmp_path, "B")
    shipped = pod.set_up()
    (tmp_path / "plugin.py").write_text(DISPLACES)
    pod.installs("trtllm-serve", f'exec {sys.executable} {tmp_path / "plugin.py"} "$@"')
    with pod.served() as served:
        served.pass_probes()
        assert served.states()[V1] == served.status()["fixes"][V1] == "displaced"
        assert "was replaced by another tool after us: calls come to tensorrt_llm." in served.log()
    pod.installs("trtllm-serve", TRTLLM_SERVE)
    assert pod.set_up() == shipped
