"""OffsetStager on the simulated device: what arrives is what the table held at the call, whatever follows.

Every comparison is preceded by an overwrite that happens while the stream is held by a gate, so a stager that lets the
device read the caller's memory fails here every time.
"""

import threading
import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_kvfix import native
from trtllm_kvfix.native import OffsetStager

Table = npt.NDArray[np.int32]

SCALES, OFFSETS = [2, 6], [1, 3]
UNTOUCHED = -7
ROWS, BLOCKS, SLOTS = 6, 13, 3
LAYOUTS = ["v1", "v2"]
MODES = ["snapshot", "early_copy", "auto"]


class Bench:
    """A device, a stream, a live table and a destination whose expected content is kept beside it."""

    def __init__(self, layout: str, mode: str, *, slots: int = SLOTS, blocks: int = BLOCKS, seed: int = 1) -> None:
        self.device = native.open_device("cpu", seed)
        self.stream = self.device.create_stream()
        scales = {} if layout == "v1" else {"index_scales": SCALES, "kv_offset": OFFSETS}
        self.stager = OffsetStager(
            layout=layout,
            num_pools=2,
            rows_max=ROWS,
            blocks_max=blocks,
            device=self.device,
            mode=mode,
            slots=slots,
            **scales,
        )
        self.layout = layout
        self.table: Table = self.device.pinned([2, ROWS, 2, blocks], "int32").array
        self.dst = self.device.empty([2, ROWS, 2, blocks], "int32")
        self.expected: Table = np.full((2, ROWS, 2, blocks), UNTOUCHED, np.int32)
        self.device.upload(self.dst, self.expected, self.stream)

    def ship(self, rows: list[int], width: int | None = None) -> None:
        self.stager.ship(self.dst, self.table, rows, width=width, stream=self.stream)
        batch = self.table[:, rows, :, :width]
        if self.layout == "v2":
            k = batch[:, :, 0]
            scaled = k * np.array(SCALES, np.int32)[:, None, None]
            shifted = scaled + np.array(OFFSETS, np.int32)[:, None, None]
            batch = np.stack([np.where(k == -1, 0, scaled), np.where(k == -1, 0, shifted)], axis=2)
        self.expected[:, : len(rows), :, : batch.shape[3]] = batch

    def overwrite_while_pending(self) -> None:
        """Replace the whole table while everything shipped is still held by the gate, then let it run."""
        behind = self.device.create_event()
        self.device.record(behind, self.stream)
        kept = self.table.copy()
        self.table[...] = 123456
        assert not self.device.done(behind), "nothing was pending when the table was overwritten"
        self.device.open_gate(self.gate)
        self.device.synchronize(self.stream)
        self.device.destroy_event(behind)
        self.table[...] = kept

    def hold(self) -> None:
        self.gate = self.device.close_gate(self.stream)

    def arrived(self) -> Table:
        return self.device.download(self.dst, self.stream)


@pytest.fixture(params=[(layout, mode) for layout in LAYOUTS for mode in MODES], ids="-".join)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(*request.param)
    yield made
    made.stager.close()


@settings(max_examples=25, deadline=None)
@given(layout=st.sampled_from(LAYOUTS), mode=st.sampled_from(MODES), blocks=st.sampled_from([1, 4, 13]), data=st.data())
def test_overwriting_after_every_ship_changes_nothing(layout: str, mode: str, blocks: int, data: st.DataObject) -> None:
    bench = Bench(layout, mode, blocks=blocks, seed=data.draw(st.integers(0, 1000)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows_of, width_of = st.lists(st.integers(0, ROWS - 1), max_size=ROWS), st.integers(0, blocks) | st.none()
    for _ in range(10):
        # Before the gate is closed: an example may be ended while it draws, and a stager that is dropped then waits.
        shipments = [(data.draw(rows_of), data.draw(width_of)) for _ in range(2)]
        bench.hold()
        for rows, width in shipments:
            if rng.random() < 0.5:
                bench.table[...] = rng.integers(-1, 50, bench.table.shape)
            else:
                bench.table[rng.integers(2), rng.integers(ROWS), :, rng.integers(blocks)] = rng.integers(-1, 50)
            bench.ship(rows, width)
        bench.overwrite_while_pending()
        np.testing.assert_array_equal(bench.arrived(), bench.expected)
    bench.stager.close()


def test_the_row_numbers_may_be_overwritten_too(bench: Bench) -> None:
    bench.table[...] = np.arange(bench.table.size).reshape(bench.table.shape)
    rows = np.array([4, 2, 2], np.int32)
    bench.hold()
    bench.stager.ship(bench.dst, bench.table, rows, stream=bench.stream)
    bench.ship([4, 2, 2])
    rows[:] = 0
    bench.overwrite_while_pending()
    np.testing.assert_array_equal(bench.arrived(), bench.expected)


def test_rows_may_be_a_number_of_them(bench: Bench) -> None:
    bench.table[...] = np.arange(bench.table.size).reshape(bench.table.shape)
    bench.ship([0, 1, 2])
    np.testing.assert_array_equal(bench.arrived(), bench.expected)
    bench.table += 1
    bench.stager.ship(bench.dst, bench.table, 4, stream=bench.stream)
    bench.ship([0, 1, 2, 3])
    np.testing.assert_array_equal(bench.arrived(), bench.expected)
    with pytest.raises(ValueError, match="7 rows of a table of 6"):
        bench.stager.ship(bench.dst, bench.table, 7, stream=bench.stream)


def test_what_was_lent_is_the_callers_again_once_it_is_settled(bench: Bench) -> None:
    for value in range(20):
        bench.table[...] = value
        bench.stager.ship(bench.dst, bench.table, ROWS, stream=bench.stream, lent=True)
        bench.stager.settle()
        bench.table[...] = 123456
        arrived = bench.arrived()[:, :, 0]
        assert (arrived == (value if bench.layout == "v1" else value * np.array(SCALES)[:, None, None])).all()


class MovingTable:
    """A CPU tensor as far as a stager looks at one; its memory may be replaced under it."""

    def __init__(self, array: Table) -> None:
        self.array = array

    def numpy(self) -> Table:
        return self.array

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


def test_a_table_that_moves_or_changes_is_found_where_it_is(bench: Bench) -> None:
    table = MovingTable(bench.table)
    first, second = bench.table, np.full_like(bench.table, 7)
    for array in (first, second, first):
        table.array = bench.table = array
        bench.table += 1
        bench.stager.ship(bench.dst, table, range(ROWS), stream=bench.stream)
        bench.ship(list(range(ROWS)))  # says what is expected, and goes another way
        np.testing.assert_array_equal(bench.arrived(), bench.expected)


def test_each_destination_gets_its_own(bench: Bench) -> None:
    other = bench.device.empty(bench.dst.shape, "int32")
    bench.device.upload(other, bench.expected, bench.stream)
    bench.table[...] = 1
    bench.ship([0])
    bench.table[...] = 2
    bench.stager.ship(other, bench.table, [0], stream=bench.stream)
    np.testing.assert_array_equal(bench.arrived(), bench.expected)
    assert not np.array_equal(bench.device.download(other, bench.stream), bench.expected)


def test_a_stager_keeps_no_table(bench: Bench) -> None:
    table = MovingTable(bench.table)
    bench.stager.ship(bench.dst, table, range(ROWS), stream=bench.stream)
    gone = weakref.ref(table)
    del table
    assert gone() is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_ring_that_is_full_waits_for_the_oldest_and_counts_it(layout: str) -> None:
    bench = Bench(layout, "snapshot")  # an early copy that is late goes through another ring
    everything = list(range(ROWS))
    bench.hold()
    for value in range(SLOTS):
        bench.table[...] = value
        bench.ship(everything)
    assert bench.stager.stats().ring_waits == 0
    bench.table[...] = SLOTS
    one_more = threading.Thread(target=bench.ship, args=[everything])
    one_more.start()
    try:
        while bench.stager.stats().ring_waits == 0:
            assert one_more.is_alive(), "a slot was filled again while the stream was held"
    finally:
        bench.device.open_gate(bench.gate)
        one_more.join()
    np.testing.assert_array_equal(bench.arrived(), bench.expected)
    stats = bench.stager.stats()
    assert stats.ships == SLOTS + 1
    assert stats.ring_waits == 1
    assert stats.wait_us > 0


@pytest.mark.parametrize("mode", MODES)
def test_one_stager_on_two_streams_gives_each_its_own(mode: str) -> None:
    bench = Bench("v1", mode)
    other = bench.device.create_stream()
    second = bench.device.empty([2, ROWS, 2, BLOCKS], "int32")
    for value in range(100):
        bench.table[...] = value
        bench.stager.ship(bench.dst, bench.table, range(ROWS), stream=bench.stream)
        bench.table[...] = -value
        bench.stager.ship(second, bench.table, range(ROWS), stream=other)
    assert (bench.device.download(bench.dst, bench.stream) == 99).all()
    assert (bench.device.download(second, other) == -99).all()


def test_close_waits_and_later_ships_are_refused(bench: Bench) -> None:
    bench.ship([0, 1])
    bench.stager.close()
    bench.stager.close()
    np.testing.assert_array_equal(bench.arrived(), bench.expected)
    with pytest.raises(ValueError, match="after close"):
        bench.ship([0])


def test_leaving_its_block_closes_it(bench: Bench) -> None:
    with bench.stager as entered:
        assert entered is bench.stager
    with pytest.raises(ValueError, match="after close"):
        bench.ship([0])


@pytest.mark.parametrize(
    ("rows", "width", "why"),
    [
        ([6], None, "row 6 is out of a table of 6 rows"),
        ([0] * 7, None, "7 rows do not fit"),
        ([0], 14, "width 14 is more than"),
        ([-1], None, "out of range"),
        ([0.5], None, "expected a 1-D array"),
    ],
)
def test_a_shipment_that_does_not_fit_is_refused_and_nothing_is_shipped(
    bench: Bench, rows: list[int], width: int | None, why: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        bench.stager.ship(bench.dst, bench.table, rows, width=width, stream=bench.stream)
    np.testing.assert_array_equal(bench.arrived(), bench.expected)
    bench.ship([1])
    np.testing.assert_array_equal(bench.arrived(), bench.expected)


@pytest.mark.parametrize(
    ("settings_", "why"),
    [
        ({"layout": "v3"}, "layout is 'v3'"),
        ({"mode": "fast"}, "mode is 'fast'"),
        ({"slots": 1}, "slots is 1"),
        ({"num_pools": 0}, "num_pools is 0"),
        ({"num_pools": 65}, "num_pools is 65"),
        ({"rows_max": 0}, "rows_max is 0"),
        ({"blocks_max": 0}, "blocks_max is 0"),
        ({"layout": "v2"}, "needs index_scales"),
        ({"index_scales": [1], "kv_offset": [1]}, "belong to layout 'v2'"),
        ({"device": "gpu"}, "device is 'gpu'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings_: dict[str, object], why: str) -> None:
    good: dict[str, object] = {"layout": "v1", "num_pools": 1, "rows_max": 4, "blocks_max": 4, "device": "cpu"}
    with pytest.raises(ValueError, match=why):
        OffsetStager(**{**good, **settings_})  # type: ignore[arg-type]


def test_a_table_of_another_kind_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="int64"):
        bench.stager.ship(bench.dst, bench.table.astype(np.int64), [0], stream=bench.stream)
    with pytest.raises(ValueError, match="pools"):
        bench.stager.ship(bench.dst, bench.table[:1], [0], stream=bench.stream)
    with pytest.raises(ValueError, match="larger than"):
        bench.stager.ship(bench.dst, np.zeros((2, ROWS + 1, 2, BLOCKS), np.int32), [0], stream=bench.stream)
    with pytest.raises(ValueError, match="dst has 1 pools, the table 2"):
        bench.stager.ship(bench.device.empty([1, ROWS, 2, BLOCKS], "int32"), bench.table, [0], stream=bench.stream)
    with pytest.raises(TypeError, match="expected a CUDA tensor"):
        bench.stager.ship(bench.table, bench.table, [0], stream=bench.stream)


def test_a_narrower_table_in_wider_memory_is_read_by_its_strides(bench: Bench) -> None:
    wide = np.random.default_rng(1).integers(0, 50, (2, 2 * ROWS, 2, 2 * BLOCKS), np.int32)
    bench.table = wide[:, ::2, :, :BLOCKS]
    bench.ship([0, 5, 3])
    np.testing.assert_array_equal(bench.arrived(), bench.expected)
