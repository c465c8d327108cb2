"""The committed stub of the extension is the one that the built extension gives; `make stubs` rewrites it."""

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "trtllm_kvfix" / "_core.pyi"
PATTERNS = ROOT / "tools" / "stub_patterns.txt"


def test_committed_stub_is_what_the_extension_gives(tmp_path: Path) -> None:
    fresh = tmp_path / "_core.pyi"
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "trtllm_kvfix._core"]
    subprocess.run([*stubgen, "-p", str(PATTERNS), "-o", str(fresh)], check=True)
    difference = difflib.unified_diff(
        COMMITTED.read_text().splitlines(), fresh.read_text().splitlines(), "committed", "generated", lineterm=""
    )
    assert not list(difference), "run `make stubs` and read the difference"
