"""Each fix's own trial of its mechanism passes, and fails when the mechanism is taken away."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixes.faults import failing
from tests.fixes.proofs import broken_of
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.staged_offsets_v2 import fix as staged_offsets_v2
from trtllm_kvfix.hazards import simulated
from trtllm_kvfix.hazards.h4_eviction_structures.simulated import self_test as self_test_of_pins
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


def test_a_trial_ends_whose_fix_takes_a_fallback_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "HANGS_AFTER_S", 0.2)
    failed = failing("fixes.staged_offsets_v2.fix.private_lot", always=True)
    with failed as planted, pytest.raises(AssertionError, match="waited for work of the device"):
        staged_offsets_v2.FIX.self_test()
    assert planted.raised > 0


def test_a_trial_that_is_interrupted_leaves_no_thread_behind() -> None:
    """Python waits for its threads when it ends, so a ctrl-C here held `doctor` for a minute."""
    lock, before = threading.RLock(), set(threading.enumerate())

    def guarded(call: Callable[[], Any]) -> Callable[[], Any]:
        def under_lock() -> Any:
            with lock:
                return call()

        return under_lock

    def queued() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        self_test_of_pins(guarded, queued)
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(timeout=20)
    assert not [thread for thread in left if thread.is_alive()]
