"""Needs a CUDA GPU, torch, pydantic, and tests/ beside integration/.

The self-check on the stand-in with torch's tensors and streams.
"""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pydantic", reason="needs pydantic, for the settings")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from tests.overlay.upstream_double import ROOT  # noqa: E402  not there where the module is skipped
from tests.standin.fixture import STANDIN, VARIANTS  # noqa: E402
from trtllm_kvfix.fixes import ALL  # noqa: E402
from trtllm_kvfix.overlay.fix import State  # noqa: E402
from trtllm_kvfix.tools.selfcheck import report, steps  # noqa: E402

LIMIT_S = 120


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fix_holds(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """Runs in the children that the command starts."""
    monkeypatch.setenv("STANDIN_VARIANT", variant)
    monkeypatch.setenv("STANDIN_DEVICE", "torch")
    monkeypatch.setenv("PYTHONPATH", f"{STANDIN}:{STANDIN / 'with_nixl'}:{ROOT}")
    found = report.compose(steps.run(steps.names(), limit_s=LIMIT_S))
    assert found["problems"] == []
    needed = {fix.id for fix in ALL if fix.expected[variant] is State.NEEDED}
    seen = {each["name"]: each for each in found["scenarios"] if each["fix"] in needed}
    assert {name: each["verdict"] for name, each in seen.items()} == dict.fromkeys(seen, "holds")
    assert {each["fix"] for each in seen.values()} == needed  # some have more than one
