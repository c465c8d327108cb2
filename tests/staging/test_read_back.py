"""Reading back: nobody waits, samples that would pile up are left out, and a failure ends it and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from trtllm_kvfix import native
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.settings import load
from trtllm_kvfix.staging import on_stream
from trtllm_kvfix.staging.mark import MovableMark
from trtllm_kvfix.staging.read_back import BAD_PAGE, PENDING_MAX, ReadBack, Shipment, Table

SHAPE = (2, 3, 2, 4)  # pools, rows, planes, blocks
FIX = "a-fix"


class Bench:
    def __init__(self) -> None:
        self.device = native.open_device("cpu")
        self.stream = self.device.create_stream()
        self.output = self.device.empty(SHAPE, "int32")
        self.table = np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE)
        self.device.upload(self.output, self.table, self.stream)
        self.read_back = ReadBack(FIX, 1)
        self.before = self._counts()

    def look(self, meant: Table) -> bool:
        with on_stream(self.device, self.stream):
            if not self.read_back.due():
                return False
            self.read_back.look(lambda: Shipment(self.output, meant))
            return True

    @contextmanager
    def held(self) -> Iterator[None]:
        gate = self.device.close_gate(self.stream)
        try:
            yield
        finally:
            self.device.open_gate(gate)

    def counted(self) -> tuple[float, float]:
        """Shipments that were read back, and mismatches."""
        self.device.synchronize(self.stream)
        counters.read()
        now = self._counts()
        return now[0] - self.before[0], now[1] - self.before[1]

    def _counts(self) -> tuple[float, float]:
        return counters.table_read_backs.by_fix().get(FIX, 0), counters.table_mismatches.by_fix().get(FIX, 0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    "part", [(slice(None),), (slice(None), slice(1)), (slice(None), slice(2), slice(None), slice(3))]
)
def test_rows_and_widths_are_compared_with_their_own_places(bench: Bench, part: tuple[slice, ...]) -> None:
    assert bench.look(bench.table[part].copy())
    assert bench.counted() == (1, 0)


def test_one_word_that_differs_is_a_mismatch(bench: Bench) -> None:
    for place in ((0, 0, 0, 0), (1, 2, 1, 3)):
        meant = bench.table.copy()
        meant[place] += 1
        assert bench.look(meant)
    assert bench.counted() == (2, 2)


def test_what_is_behind_a_bad_page_counts_for_nothing(bench: Bench) -> None:
    meant = bench.table.copy()
    meant[1, 1] = BAD_PAGE
    assert bench.look(meant)
    assert bench.counted() == (1, 0)


def test_nobody_waits_and_samples_that_would_pile_up_are_left_out(bench: Bench) -> None:
    with bench.held():
        looked = [bench.look(bench.table.copy()) for _ in range(PENDING_MAX + 3)]
        counters.read()  # may be asked for at any time
        assert looked == [True] * PENDING_MAX + [False] * 3
    assert bench.counted() == (PENDING_MAX, 0)
    assert bench.look(bench.table.copy())
    assert bench.counted() == (PENDING_MAX + 1, 0)


def test_a_destination_is_kept_until_it_has_been_read(bench: Bench) -> None:
    with bench.held():
        assert bench.look(bench.table.copy())
        del bench.output
        others = [bench.device.empty(SHAPE, "int32") for _ in range(4)]
    assert len(others) == 4 and bench.counted() == (1, 0)


def test_a_failure_ends_the_reading_back_and_is_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Shipment:
        raise RuntimeError("the table is gone")

    assert bench.read_back.due()
    bench.read_back.look(fails)
    assert not bench.look(bench.table.copy())
    assert "no longer read back: RuntimeError: the table is gone" in caplog.text


@pytest.mark.parametrize("place", [(ReadBack, "_compare"), (MovableMark, "done")], ids=["comparison", "event"])
@pytest.mark.parametrize("asked", ["by the next shipment", "by a reader of the counters"])
def test_a_sample_that_cannot_be_judged_ends_the_reading_back_and_nothing_else(
    place: tuple[type, str], asked: str, bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("the device is in error")

    assert bench.look(bench.table.copy())
    bench.device.synchronize(bench.stream)
    with monkeypatch.context() as patch:
        patch.setattr(*place, fails)
        if asked == "by the next shipment":
            assert not bench.read_back.due()
        for _ in range(2):
            assert bench.counted() == (0, 0)
            assert not bench.look(bench.table.copy())
    assert bench.counted() == (0, 0)
    assert caplog.text.count("no longer read back: RuntimeError: the device is in error") == 1


def test_what_cannot_be_told_is_left_out(bench: Bench) -> None:
    assert bench.read_back.due()
    bench.read_back.look(lambda: None)
    assert bench.counted() == (0, 0)


@pytest.mark.parametrize("text", ["-1", "often", "0.5", "true"])
def test_a_bad_rate_is_refused_by_name(text: str) -> None:
    name = "TRTLLM_KVFIX_TUNING_READ_BACK_EVERY"
    with pytest.raises(SettingsError, match=name):
        load(environ={name: text})
