"""Every order of import, apply and revert, each in a fresh process: what runs is ours exactly while the hook is on."""

import itertools
import shutil
from pathlib import Path

import pytest

from tests.overlay.upstream_double import EXECUTOR, python

ON, OFF = "['ours', 'upstream', 'ours']", "['upstream', 'upstream']"
STEPS = {
    "enable": "trtllm_kvfix.enable()",
    "import": f"from {EXECUTOR} import py_executor",
    "disable": "trtllm_kvfix.disable()",
}
PRELUDE = "import small_fixes, trtllm_kvfix\n"
SHOW = f"\nfrom {EXECUTOR} import py_executor; print(py_executor.record())"


def orders() -> list[tuple[str, ...]]:
    """All sequences of one to four steps."""
    return [each for length in range(1, 5) for each in itertools.product(STEPS, repeat=length)]


def test_no_order_is_forgotten() -> None:
    assert len(orders()) == sum(len(STEPS) ** length for length in range(1, 5))


@pytest.mark.parametrize("first", list(STEPS))
def test_what_runs_follows_the_last_switch(small: Path, first: str) -> None:
    """One process for each beginning runs all orders that begin so, each in a forked child: a fresh state, cheaply."""
    beginning = [each for each in orders() if each[0] == first]
    expected = [ON if "enable" in _last_switch(each) else OFF for each in beginning]
    code = PRELUDE + "import os, sys, trtllm_kvfix.process\n"
    for order in beginning:
        body = "; ".join(STEPS[step] for step in order)
        code += (
            f"\nif os.fork() == 0:\n    {body}\n    from {EXECUTOR} import py_executor\n    print(py_executor.record())"
        )
        code += "\n    sys.stdout.flush(); os._exit(0)\nos.wait()"
    done = python(small, code)
    assert done.stdout.splitlines() == expected, done.stderr


def _last_switch(order: tuple[str, ...]) -> str:
    return next((step for step in reversed(order) if step != "import"), "")


def test_switch_is_read_when_upstream_is_imported_not_when_the_interpreter_starts(small: Path) -> None:
    code = PRELUDE + "from trtllm_kvfix.overlay import import_hook as hook; hook.install()\nimport os\n"
    late = code + "os.environ['TRTLLM_KVFIX_ENABLED'] = 'false'" + SHOW
    assert python(small, late).stdout.strip() == OFF
    assert python(small, code + SHOW, TRTLLM_KVFIX_ENABLED="true").stdout.strip() == ON
    assert python(small, code + SHOW, TRTLLM_KVFIX_ENABLED="false").stdout.strip() == OFF
    assert python(small, code + SHOW).stdout.strip() == ON


FAILED_CALL = f"""
import dataclasses, os, sys, small_fixes, trtllm_kvfix
from {EXECUTOR} import py_executor
from small_fixes import Answer, State
from trtllm_kvfix.overlay import import_hook as hook
first, second = small_fixes.ALL
small_fixes.stand.ALL = (first, dataclasses.replace(second, probe=lambda up: Answer(State.UNKNOWN, "odd")))

def state():
    from trtllm_kvfix.process import active
    watched = sorted(hook.finder.before), sorted(hook.finder.after), hook.finder in sys.meta_path
    return trtllm_kvfix.status(), py_executor.record(), watched, dict(os.environ), active.children.given()

BEFORE
before = state()
try:
    trtllm_kvfix.enable(CALL)
except Exception as error:
    print(type(error).__name__, [number for number, (was, now) in enumerate(zip(before, state())) if was != now])
"""


@pytest.mark.parametrize("call", ['fixes={"nixl-listener": "on"}', 'config="/nowhere"', 'fixes={"odd": "on"}'])
@pytest.mark.parametrize(
    "before",
    ["", "hook.install()", "trtllm_kvfix.enable(metrics_port=9400)", "trtllm_kvfix.enable(); trtllm_kvfix.disable()"],
)
def test_a_call_that_fails_leaves_everything_as_it_was(small: Path, before: str, call: str) -> None:
    done = python(small, FAILED_CALL.replace("BEFORE", before).replace("CALL", call), TRTLLM_KVFIX_METRICS_PORT="9300")
    assert done.stdout == "SettingsError []\n", done.stderr


REFUSES = """
from trtllm_kvfix import process

def refuses():
    raise RuntimeError

process.active.deactivate = refuses
"""


def test_a_call_that_fails_exports_nothing_even_if_a_fix_does_not_come_off(small: Path) -> None:
    code = FAILED_CALL.replace("BEFORE", REFUSES).replace("CALL", 'fixes={"nixl-listener": "on"}')
    assert python(small, code).stdout == "RuntimeError [0, 2]\n", "environment and settings are as they were"


def test_a_bad_setting_stops_every_import_of_upstream(small: Path) -> None:
    code = PRELUDE + (
        "from trtllm_kvfix.overlay import import_hook as hook; hook.install()\n"
        "for attempt in range(2):\n"
        "    try:\n        import tensorrt_llm\n    except Exception as error:\n        print(error)\n"
    )
    lines = python(small, code, TRTLLM_KVFIX_FORCES="true").stdout.splitlines()
    assert lines == ["unknown setting TRTLLM_KVFIX_FORCES in the environment; did you mean TRTLLM_KVFIX_FORCE?"] * 2


def test_names_taken_before_are_mended_where_they_can_be_and_listed_where_not(small: Path) -> None:
    code = (
        PRELUDE
        + f"""
from {EXECUTOR} import early, py_executor
status = trtllm_kvfix.enable()
print(early.KVCacheManager().prepare_resources(None), early.helper(), py_executor.record())
print(status["aliases"])
"""
    )
    assert python(small, code).stdout.splitlines() == [
        f"['ours', 'upstream'] upstream {ON}",
        f"['{EXECUTOR}.early.helper']",
    ]


def test_the_hook_leaves_the_loader_as_others_expect_it(small: Path) -> None:
    code = PRELUDE + (
        "trtllm_kvfix.enable()\n"
        f"import inspect\nfrom {EXECUTOR} import resource_manager as module, py_executor\n"
        "print(type(module.__loader__).__name__, vars(module.__loader__).keys() - {'name', 'path'})\n"
        "print(module.__spec__.loader is module.__loader__, 'helper' in inspect.getsource(module))\n"
    )
    assert python(small, code).stdout.splitlines() == ["SourceFileLoader set()", "True True"]


def test_a_finder_of_the_same_kind_does_not_send_ours_in_circles(small: Path) -> None:
    other = """
import sys
class Other:
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("tensorrt_llm"):
            return None
        specs = (each.find_spec(name, path, target) for each in sys.meta_path if each is not self)
        return next((spec for spec in specs if spec is not None), None)
"""
    for place in ("0", "len(sys.meta_path)", "1"):
        code = PRELUDE + other + f"trtllm_kvfix.enable(); sys.meta_path.insert({place}, Other())" + SHOW
        done = python(small, code)
        assert done.stdout.strip() == ON, done.stderr


def test_spawned_and_forked_processes_have_the_fixes_too(small: Path) -> None:
    (small / "tasks.py").write_text(
        f"def record():\n    from {EXECUTOR} import py_executor\n    print(py_executor.record(), flush=True)\n"
    )
    (small / "sitecustomize.py").write_text("import small_fixes\n")  # the one that ours must run as well
    for method in ("fork", "spawn", "forkserver"):
        code = PRELUDE + (
            "import multiprocessing, tasks\n"
            "if __name__ == '__main__':\n"
            f"    trtllm_kvfix.enable(); context = multiprocessing.get_context('{method}')\n"
            "    process = context.Process(target=tasks.record); process.start(); process.join()\n"
            "    trtllm_kvfix.disable()\n"
            f"    process = multiprocessing.get_context('spawn').Process(target=tasks.record)\n"
            "    process.start(); process.join()\n"
        )
        done = python(small, code)
        assert done.stdout.splitlines() == [ON, OFF], (method, done.stderr)


def test_loader_that_serves_several_modules_calls_for_the_watched_one_only(small: Path) -> None:
    """Modules of one folder in a zip file share a loader, and somebody may ask for a module without running it."""
    shutil.make_archive(str(small / "packed"), "zip", small, "tensorrt_llm")
    shutil.rmtree(small / "tensorrt_llm")
    code = f"""
import sys; sys.path.insert(0, "packed.zip")
import importlib.util
from trtllm_kvfix.overlay import import_hook as hook
seen = []
hook.watch(["{EXECUTOR}.py_executor"], lambda module: seen.append(module.__name__))
for _ in range(2):
    print(importlib.util.find_spec("{EXECUTOR}.py_executor").name)
from {EXECUTOR} import early
print(seen)
from {EXECUTOR} import py_executor
print(seen)
"""
    done = python(small, code)
    name = f"{EXECUTOR}.py_executor"
    assert done.stdout.splitlines() == [name, name, "[]", f"['{name}']"], done.stderr


def test_a_module_that_is_loaded_again_is_mended_again(small: Path) -> None:
    code = (
        PRELUDE
        + f"""
import importlib
trtllm_kvfix.enable()
from {EXECUTOR} import py_executor, resource_manager
for module in (resource_manager, py_executor):
    importlib.reload(module)
    print(py_executor.record(), sorted(each["word"] for each in trtllm_kvfix.status()["fixes"].values()))
print(trtllm_kvfix.disable(), py_executor.record())
"""
    )
    done = python(small, code)
    assert done.stdout.splitlines() == [f"{ON} ['applied', 'applied']"] * 2 + [f"[] {OFF}"], done.stderr
    assert "was loaded again; fix token-budget is applied again" in done.stderr


def test_what_is_loaded_again_past_the_hook_is_reported_as_lost(small: Path) -> None:
    code = (
        PRELUDE
        + f"""
trtllm_kvfix.enable()
from {EXECUTOR} import py_executor, resource_manager
exec(compile(open(resource_manager.__file__).read(), "again", "exec"), vars(resource_manager))
py_executor.PyExecutor().start_worker()
"""
    )
    error = python(small, code).stderr
    assert (
        "resource_manager:KVCacheManager.prepare_resources was replaced by another tool after us: calls come" in error
    )
