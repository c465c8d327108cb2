"""Each fix's own trial of its mechanism passes, and fails when the mechanism is taken away."""

import pytest

from tests.fixes.proofs import broken_of
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import Fix


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.id)
def test_the_mechanism_holds_on_this_machine(fix: Fix) -> None:
    fix.self_test()


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.id)
def test_without_the_mechanism_the_trial_fails(fix: Fix, monkeypatch: pytest.MonkeyPatch) -> None:
    name, instead = broken_of(fix.id)
    monkeypatch.setattr(f"trtllm_kvfix.{name}", instead)
    with pytest.raises(AssertionError):
        fix.self_test()
