"""A `tensorrt_llm` of a few lines, with the modules at which the overlay replaces something, and two fixes for it.

The stand-in of tests/standin shows what the fixes do. This one shows how they arrive, in fresh processes, whatever the
order of imports; `record` shows which code ran.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests import fresh

ROOT = Path(__file__).resolve().parents[2]
EXECUTOR = "tensorrt_llm._torch.pyexecutor"

FILES = {
    "tensorrt_llm/__init__.py": "from tensorrt_llm import llmapi\n",
    "tensorrt_llm/llmapi/__init__.py": "from .llm_args import update_llm_args_with_extra_dict\n",
    "tensorrt_llm/llmapi/llm_args.py": """
KNOWN = {"model", "backend"}

def update_llm_args_with_extra_dict(llm_args, llm_args_dict, extra_llm_api_options=None):
    unknown = set(llm_args_dict) - KNOWN
    if unknown:
        raise ValueError(f"unknown arguments {sorted(unknown)}")
    return llm_args | llm_args_dict
""",
    "tensorrt_llm/commands/__init__.py": "",
    "tensorrt_llm/commands/serve.py": """
import json
import sys

from tensorrt_llm.llmapi import update_llm_args_with_extra_dict

def main():
    from tensorrt_llm._torch.pyexecutor.py_executor import PyExecutor

    llm_args = update_llm_args_with_extra_dict({"model": "m"}, json.loads(sys.argv[1]), sys.argv[1])
    PyExecutor().start_worker()
    print(json.dumps(llm_args))

if __name__ == "__main__":
    main()
""",
    "tensorrt_llm/_torch/__init__.py": "",
    "tensorrt_llm/_torch/pyexecutor/__init__.py": "",
    "tensorrt_llm/_torch/pyexecutor/resource_manager.py": """
class KVCacheManager:
    def prepare_resources(self, batch):
        return ["upstream"]

def helper():
    return "upstream"
""",
    "tensorrt_llm/_torch/pyexecutor/early.py": "from .resource_manager import KVCacheManager, helper\n",
    "tensorrt_llm/_torch/pyexecutor/py_executor.py": """
from . import resource_manager

class PyExecutor:
    def start_worker(self):
        return "started"

    def _event_loop_wrapper(self):
        raise KeyError("gone")

def record():
    return [*resource_manager.KVCacheManager().prepare_resources(None), resource_manager.helper()]
""",
    "small_fixes.py": '''
"""Stands where the fixes of the package are, before the hook asks for them."""

import sys
import types

from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam, State

MANAGER = "tensorrt_llm._torch.pyexecutor.resource_manager"
EXECUTOR = "tensorrt_llm._torch.pyexecutor.py_executor"

def around(original):
    return lambda *args, **kwargs: ["ours", *original(*args, **kwargs)]

def fix(fix_id, path, make, trigger):
    return Fix(
        id=fix_id, hazard="H0", title=fix_id, upstream=(), triggers=(trigger,),
        probe=lambda up: Answer(State.NEEDED, "its seam is there"),
        replacements=lambda up, settings: [Replacement(Seam(MANAGER, path), make)],
        self_test=lambda: None,
        expected={},
    )

ALL = (
    fix("token-budget", "KVCacheManager.prepare_resources", around, MANAGER),
    fix("nixl-listener", "helper", lambda original: lambda: "ours", EXECUTOR),
)

stand = types.ModuleType("trtllm_kvfix.fixes")
stand.ALL = ALL
sys.modules["trtllm_kvfix.fixes"] = stand
''',
}


def write(folder: Path) -> Path:
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """A process needs this to import the double of upstream and this checkout, and nothing of ours besides."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRTLLM_KVFIX")}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "TRTLLM_KVFIX_RUNTIME_DIR": str(folder / "run"),
        **variables,
    }


def python(folder: Path, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter."""
    return fresh.run([sys.executable, "-c", code, *arguments], cwd=folder, env=environment(folder, **variables))
