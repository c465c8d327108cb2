"""A process that forks while it serves: no child hangs, none fails, and the parent goes on."""

import os
import sys
from pathlib import Path

import pytest

from tests import fresh
from tests.torture.dropping import Things
from tests.torture.forking import exit_code_of
from trtllm_kvfix import native
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.overlay.recheck import Recheck

ROOT = Path(__file__).resolve().parents[2]
FORKS = os.environ.get("TORTURE_FORKS", "8")  # two of each kind of child

# A build and a manager that come by the fix.
SERVED_WITH = [
    ("C", "v1", "staged-offsets-v1"),
    ("B", "v2", "staged-offsets-v2"),
    ("F", "v2", "staged-offsets-v2"),
    ("D", "v2-by-layer", "staged-offsets-v2"),
    ("B", "v1", "computed-blocks"),
    ("B", "v1", "batched-admission"),
    ("C", "v1", "token-budget"),
    ("C", "v1", "concurrent-pins"),
    ("C", "v1", "input-copy-fence"),
    ("D", "lora", "graph-inputs"),
    ("B", "v2", "all"),
    ("C", "v1", "all"),
    ("C", "offload", "all"),
]


def said_by(*command: str) -> str:
    ended = fresh.run([sys.executable, "-m", *command], cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


@pytest.mark.parametrize("setup", SERVED_WITH, ids="-".join)
def test_children_of_a_server_end(setup: tuple[str, str, str]) -> None:
    assert said_by("tests.torture.forking", *setup, FORKS) == f"hung 0 failed 0 of {int(FORKS) + 1}"


def test_a_child_switches_off_whatever_its_parents_thread_holds() -> None:
    recheck = Recheck(lambda: None)
    recheck.start()
    with recheck._over._cond:  # type: ignore[attr-defined]  # as the thread has it when it looks at the time
        child = os.fork()
        if child == 0:
            recheck.stop()
            os._exit(0)
        code = exit_code_of(child)
    recheck.stop()
    assert recheck._over.is_set()
    assert code == 0, "it hung"


def test_children_drop_everything_that_reaches_a_device_or_has_a_lock() -> None:
    assert said_by("tests.torture.dropping", "cpu", "8") == "hung 0 failed 0 of 8"


# Plain values, which hold neither memory of a device nor a lock.
VALUES = {
    *(
        "Admission",
        "Admitted",
        "Prompt",
        "Settled",
        "StartAnswer",
        "Starting",
        "BatchAdmission",
        "GotBlocks",
        "BlockEvent",
        "BlockManagerConfig",
        "CacheCounters",
        "DecodeBatch",
    ),
    *(
        "DeviceTable",
        "EndedTransfer",
        "FillBooks",
        "KvCacheStats",
        "LaneStats",
        "PrefixReuse",
        "ReplayRequests",
        "ReplayReuse",
    ),
    *("ReplayScheduler", "ReplayTally", "RequestStats", "Retention", "SequenceRequest", "StagerStats", "TierClaim"),
    *("TierIndexStats", "TierStats", "TransferBatch", "TransferItem", "TurnLockStats", "WindowStats"),
}


def test_every_native_object_is_dropped_by_a_child() -> None:
    kinds = {name for name in native.__all__ if isinstance(getattr(native, name), type)}
    kinds = {name for name in kinds if not issubclass(getattr(native, name), BaseException)}
    assert kinds - VALUES - {type(each).__name__ for each in Things("cpu").kept.values()} == set()
    assert kinds >= VALUES


def test_every_fix_is_served_with() -> None:
    served = {fix for _, _, fix in SERVED_WITH}
    lasting_nothing = {"nixl-listener", "connector-prefixes", "partial-copies"}
    assert set(FIX_IDS) - served == lasting_nothing, "they have no object that lasts"
