"""The section `kvfix:` in the server's own YAML: honoured, taken out, sent on; without the hook upstream refuses it."""

import json
from pathlib import Path

import pytest

from tests.overlay.upstream_double import python
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay.server_config import without_section
from trtllm_kvfix.process import active

SERVE = """
import sys
import small_fixes
if "hook" in sys.argv:
    from trtllm_kvfix.overlay import import_hook
    import_hook.install()
from tensorrt_llm.commands import serve
serve.main()
import os
print(json.dumps({k: v for k, v in os.environ.items() if k.startswith("TRTLLM_KVFIX_FIX")}))
import trtllm_kvfix
print(json.dumps({fix_id: each["word"] for fix_id, each in trtllm_kvfix.status()["fixes"].items()}))
""".replace("import sys\n", "import json, sys\n", 1)


def serve(folder: Path, document: object, *arguments: str, **variables: str) -> tuple[list[object], str]:
    done = python(folder, SERVE, json.dumps(document), *arguments, **variables)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_section_is_honoured_taken_out_and_sent_on(small: Path) -> None:
    document = {"backend": "pytorch", "kvfix": {"fixes": {"token-budget": "off"}}}
    (llm_args, variables, words), _ = serve(small, document, "hook")
    assert llm_args == {"model": "m", "backend": "pytorch"}
    assert variables == {"TRTLLM_KVFIX_FIXES_TOKEN_BUDGET": "off"}
    assert words == {"token-budget": "off", "nixl-listener": "applied"}


def test_without_the_section_nothing_changes(small: Path) -> None:
    (llm_args, variables, words), _ = serve(small, {"backend": "pytorch"}, "hook")
    assert (llm_args, variables) == ({"model": "m", "backend": "pytorch"}, {})
    assert words == {"token-budget": "applied", "nixl-listener": "applied"}


@pytest.mark.parametrize("below_run", [False, True])
def test_enabled_false_starts_without_the_fixes_and_says_so(small: Path, below_run: bool) -> None:
    """`run` sets the variable for every process; the server's own file knows better."""
    variables = {"TRTLLM_KVFIX_ENABLED": "true"} if below_run else {}
    (llm_args, _, words), error = serve(small, {"kvfix": {"enabled": False}}, "hook", **variables)
    assert llm_args == {"model": "m"}
    assert words == {}
    assert "starts WITHOUT the fixes" in error


def test_without_the_hook_upstream_refuses_the_file(small: Path) -> None:
    output, error = serve(small, {"kvfix": {}})
    assert output == []
    assert "ValueError: unknown arguments ['kvfix']" in error


def test_the_environment_comes_before_the_section(small: Path) -> None:
    document = {"kvfix": {"fixes": {"token-budget": "off", "nixl-listener": "off"}}}
    (_, _, words), _ = serve(small, document, "hook", TRTLLM_KVFIX_FIXES_TOKEN_BUDGET="auto")
    assert words == {"token-budget": "applied", "nixl-listener": "off"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"fixes": {"token-budgets": "off"}}, "did you mean kvfix.fixes.token-budget?"),
        ({"fixes": {"token-budget": 3}}, "kvfix.fixes.token-budget is 3"),
        (None, "`kvfix:` in the configuration is None"),
    ],
)
def test_bad_section_stops_the_start(small: Path, section: object, message: str) -> None:
    output, error = serve(small, {"kvfix": section}, "hook")
    assert output == []
    assert error.startswith("[trtllm-kvfix] error: ") and message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("document", [None, [], {"model": "m"}, "text"])
def test_other_documents_pass_as_they_are(document: object) -> None:
    assert without_section(active, document) is document


def test_section_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(SettingsError, match="settings belong below it"):
        without_section(active, {"kvfix": "on"})


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"fixes": {"token-budget": "off"}}, "ignored\n"),
        ({"fixs": {}}, "ignored. With the switch on, it would be refused: SettingsError: unknown setting kvfix.fixs"),
        ({"enabled": "false"}, "it would be refused: SettingsError: the configuration: kvfix.enabled is 'false'"),
        ("on", "it would be refused: SettingsError: `kvfix:` in the configuration is 'on'"),
    ],
)
def test_with_the_switch_off_the_server_starts_whatever_the_section_is(small: Path, section: object, says: str) -> None:
    (llm_args, variables, words), error = serve(
        small, {"backend": "pytorch", "kvfix": section}, "hook", TRTLLM_KVFIX_ENABLED="false", TRTLLM_KVFIX_X="1"
    )
    assert (llm_args, variables, words) == ({"model": "m", "backend": "pytorch"}, {}, {})
    assert error.count("\n") == 2 and "the server starts WITHOUT the fixes" in error and says in error


def test_with_the_switch_off_a_server_without_the_section_hears_of_it_once(small: Path) -> None:
    (llm_args, _, _), error = serve(small, {"backend": "pytorch"}, "hook", TRTLLM_KVFIX_ENABLED="false")
    assert llm_args == {"model": "m", "backend": "pytorch"}
    assert error.count("\n") == 1 and "rank 0 of 1 runs WITHOUT the fixes: they are switched off" in error


def test_a_program_may_still_turn_the_fixes_on(small: Path) -> None:
    code = """
from trtllm_kvfix.overlay import import_hook
import_hook.install()
import small_fixes, tensorrt_llm, trtllm_kvfix, json
trtllm_kvfix.enable()
from tensorrt_llm.llmapi.llm_args import update_llm_args_with_extra_dict as update
update({}, {"kvfix": {"fixes": {"token-budget": "off"}}})
from tensorrt_llm._torch.pyexecutor import py_executor
print(py_executor.record())
"""
    done = python(small, code, TRTLLM_KVFIX_ENABLED="false")
    assert done.stdout == "['upstream', 'ours']\n", done.stderr
    assert "WITHOUT" not in done.stderr
