"""A worker that MPI spawns begins with our initializer, before its first task."""

from pathlib import Path

from tests.overlay.upstream_double import EXECUTOR, python

RECORD = f"from {EXECUTOR} import py_executor; print(py_executor.record())"


def test_a_worker_gets_the_settings_before_its_own_initializer(small: Path) -> None:
    code = f"""
import small_fixes
from trtllm_kvfix.overlay import child_environment
def own(greeting):
    from trtllm_kvfix.settings import load
    print(greeting, load().fixes.of("nixl-listener"))
child_environment.start_worker({{"TRTLLM_KVFIX_FIXES_NIXL_LISTENER": "off"}}, own, ("hello",))
{RECORD}
"""
    assert python(small, code).stdout.splitlines() == ["hello off", "['ours', 'upstream', 'upstream']"]


def test_nothing_large_is_imported_before_upstream_does(small: Path) -> None:
    """Workers whose initializer brought torch in before MPI and UCX were settled have crashed at their end."""
    (small / "torch").mkdir()
    (small / "torch/__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    code = """
import sys
from trtllm_kvfix.overlay import child_environment
child_environment.start_worker({}, None, ())
print(sorted({"torch", "tensorrt_llm", "mpi4py"} & {name.partition(".")[0] for name in sys.modules}))
"""
    done = python(small, code)
    assert done.stdout == "[]\n", done.stderr
