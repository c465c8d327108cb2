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
