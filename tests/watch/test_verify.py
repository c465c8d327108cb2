"""`verify` under `watch`, on the made-up driver: those cases that need no kernel. The others run on a GPU."""

import json

import pytest

from watch.tests.conftest import Outcome, Watch

pytest.importorskip("trtllm_kvfix._core", reason="needs the extension")

from integration.gpu.watch.ours import statement
from trtllm_kvfix.tools.verify.cases import CASES

TIMES = 3
NUMBERS = {(case.name, case.variant): str(number) for number, case in enumerate(CASES)}


def arm(watch: Watch, name: str, variant: str, which: str) -> tuple[Outcome, int]:
    done = watch("integration.gpu.watch.ours_work", "verify", NUMBERS[name, variant], which, str(TIMES))
    return done, json.loads(done.out)["wrong"]


@pytest.mark.parametrize(
    ("name", "variant", "at"),
    [
        ("offsets-v1", "snapshot", "self.table.array[:, :ROWS] = self.batches[which]"),
        ("graph-inputs", "captured copies", "self.table.array[:] = rows"),
    ],
)
def test_each_touch_of_a_control_is_caught_at_its_statement(watch: Watch, name: str, variant: str, at: str) -> None:
    done, wrong = arm(watch, name, variant, "control")
    assert (done.status, wrong) == (1, TIMES)
    assert done.times() >= TIMES
    assert all(statement(race).endswith(at) for race in done.races)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("offsets-v1", "snapshot"),
        ("offsets-v2-index", "snapshot"),
        ("offsets-v2-rebound", "snapshot"),
        ("graph-inputs", "captured copies"),
    ],
)
def test_with_the_fix_nothing_is_reported(watch: Watch, name: str, variant: str) -> None:
    done, wrong = arm(watch, name, variant, "fixed")
    assert (done.status, wrong) == (0, 0)
    assert done.times("races") == done.times("possible") == 0
    assert done.report["numbers"]["guarded"] > TIMES


@pytest.mark.parametrize("which", ["control", "fixed"])
def test_the_device_against_itself_is_not_seen(watch: Watch, which: str) -> None:
    done, wrong = arm(watch, "load-order", "reader, any", which)
    assert (done.status, wrong) == (0, TIMES if which == "control" else 0)
    assert done.times("races") == done.times("possible") == 0
