"""Every way in which upstream may copy out of its table: what arrives is what the table held at the statement."""

from collections.abc import Callable, Iterator
from copy import copy
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest

from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault, serve
from tests.fixes.proofs import Broken
from tests.standin.fixture import upstream
from tests.standin.serving import Server
from trtllm_kvfix.fixes.staged_offsets_v1.destination import StagedDestination
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging import current_place
from trtllm_kvfix.staging.stagers import Stagers

POOLS, ROWS, BLOCKS = 2, 4, 8
UNTOUCHED = -7
ROW = slice(None)


class Scene:
    def __init__(self, pools: int) -> None:
        self.tensors = import_module("tensorrt_llm._standin.tensors").tensors()
        self.stream = self.tensors.stream()
        self.table = self.tensors.pinned(pools, ROWS, 2, BLOCKS)
        self.tensor = self.tensors.on_device(pools, ROWS, 2, BLOCKS)
        self.stagers = Stagers()
        self.contents = np.random.default_rng(1).integers(1, 99, self.table.shape, np.int32)
        with self.tensors.on(self.stream):
            blank = self.tensors.pinned(*self.table.shape).fill_(UNTOUCHED)
            self.tensor.copy_(blank)
            self.destination = StagedDestination(self.tensor, self.table, self.stagers, Fuse("staged-offsets-v1"))

    def arrived(self, statements: Callable[[Any, Any], None]) -> np.ndarray[Any, Any]:
        """Runs them on a held stream, overwrites the table, lets go."""
        self.table.numpy()[...] = self.contents
        with self.tensors.on(self.stream):
            gate = self.tensors.close_gate(self.stream)
            self.destination.begin()
            statements(self.destination, self.table)
            self.destination.flush()
            self.table.numpy()[...] = 0
            self.tensors.open_gate(gate)
            seen = self.tensors.pinned(*self.table.shape)
            seen.copy_(self.tensor)
        result: np.ndarray[Any, Any] = seen.numpy()
        return result

    @property
    def shipments(self) -> int:
        return sum(entry.stager.stats().ships for entry in self.stagers._entries.values() if entry.stager is not None)


@pytest.fixture(params=[1, 2], ids="{} pools".format)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with upstream("B"):
        yield Scene(request.param)


def by_pool(rows: int, *rest: slice) -> Callable[[Any, Any], None]:
    def statements(dst: Any, table: Any) -> None:
        for pool in range(table.shape[0]):
            index = (pool, slice(None, rows), *rest)
            dst[index].copy_(table[index], non_blocking=True)

    return statements


def at_once(dst: Any, table: Any) -> None:
    dst[:, :3].copy_(table[:, :3], non_blocking=True)


def whole_planes(dst: Any, table: Any) -> None:
    dst[:, :3, :].copy_(table[:, :3, :], non_blocking=True)


STAGED = [
    (by_pool(3), 3, BLOCKS),
    (by_pool(2, ROW, slice(None, 5)), 2, 5),
    (at_once, 3, BLOCKS),
    (whole_planes, 3, BLOCKS),
]


@pytest.mark.parametrize(("statements", "rows", "width"), STAGED)
def test_known_statements_are_one_shipment(
    scene: Scene, statements: Callable[[Any, Any], None], rows: int, width: int
) -> None:
    seen = scene.arrived(statements)
    np.testing.assert_array_equal(seen[:, :rows, :, :width], scene.contents[:, :rows, :, :width])
    assert (seen[:, rows:] == UNTOUCHED).all() and (seen[..., width:] == UNTOUCHED).all()
    assert scene.shipments == 1


def shifted(dst: Any, table: Any) -> None:
    dst[0, 1:3].copy_(table[0, 1:3], non_blocking=True)


def crossed(dst: Any, table: Any) -> None:
    """Rows that go to other places than they come from."""
    dst[0, :2].copy_(table[table.shape[0] - 1, 2:4], non_blocking=True)


def thinned(dst: Any, table: Any) -> None:
    """As many words from the same address, but of every other row."""
    dst[0, :2].copy_(table[0, ::2], non_blocking=True)


@pytest.mark.parametrize(
    ("statements", "rows", "source"),
    [
        (shifted, slice(1, 3), slice(1, 3)),
        (crossed, slice(0, 2), slice(2, 4)),
        (thinned, slice(0, 2), slice(None, None, 2)),
    ],
)
def test_other_statements_copy_what_the_table_held_too(
    scene: Scene, statements: Callable[[Any, Any], None], rows: slice, source: slice
) -> None:
    pool = scene.table.shape[0] - 1 if statements is crossed else 0
    seen = scene.arrived(statements)
    np.testing.assert_array_equal(seen[0, rows], scene.contents[pool, source])
    assert scene.shipments == 0


def test_every_other_block_is_not_taken_for_the_first_ones(scene: Scene) -> None:
    every_other = slice(None, None, 2)
    seen = scene.arrived(lambda dst, table: dst[0, :2, :, :4].copy_(table[0, :2, :, every_other], non_blocking=True))
    np.testing.assert_array_equal(seen[0, :2, :, :4], scene.contents[0, :2, :, every_other])
    assert scene.shipments == 0


def test_a_copy_that_its_caller_waits_for_is_upstreams_own(scene: Scene) -> None:
    scene.table.numpy()[...] = scene.contents
    with scene.tensors.on(scene.stream):
        scene.destination.begin()
        scene.destination[0, :3].copy_(scene.table[0, :3])
    assert scene.shipments == 0 and not scene.destination.has_taken


def test_a_tensor_of_more_pools_is_upstreams_to_refuse(scene: Scene) -> None:
    pools = scene.table.shape[0]
    other = scene.tensors.on_device(pools + 1, ROWS, 2, BLOCKS)
    destination = StagedDestination(other, scene.table, scene.stagers, Fuse("staged-offsets-v1"))
    with scene.tensors.on(scene.stream), pytest.raises(ValueError, match="does not go into one of shape"):
        at_once(destination, scene.table)
    assert scene.shipments == 0 and destination.tried.faults == 0


def test_pools_that_differ_go_out_each_by_itself() -> None:
    def statements(dst: Any, table: Any) -> None:
        dst[0, :3].copy_(table[0, :3], non_blocking=True)
        dst[1, :2].copy_(table[1, :2], non_blocking=True)

    with upstream("B"):
        scene = Scene(2)
        seen = scene.arrived(statements)
        np.testing.assert_array_equal(seen[0, :3], scene.contents[0, :3])
        np.testing.assert_array_equal(seen[1, :2], scene.contents[1, :2])
        assert (seen[1, 2:] == UNTOUCHED).all() and scene.shipments == 0


def test_what_comes_from_elsewhere_goes_through() -> None:
    with upstream("B"):
        scene = Scene(1)
        fresh = scene.tensors.pinned(1, 2, 2, BLOCKS).fill_(5)
        seen = scene.arrived(lambda dst, _: dst[:, :2].copy_(fresh, non_blocking=True))
        assert (seen[:, :2] == 5).all() and (seen[:, 2:] == UNTOUCHED).all()


@pytest.mark.parametrize("blocks", [BLOCKS - 1, BLOCKS + 1])
def test_what_does_not_fit_is_upstreams_to_refuse(scene: Scene, blocks: int) -> None:
    other = scene.tensors.on_device(scene.table.shape[0], ROWS, 2, blocks)
    destination = StagedDestination(other, scene.table, scene.stagers, Fuse("staged-offsets-v1"))
    with scene.tensors.on(scene.stream), pytest.raises(ValueError, match="does not go into one of shape"):
        by_pool(3)(destination, scene.table)
    assert scene.shipments == 0 and destination.tried.faults == 0


def test_a_call_that_failed_leaves_nothing_for_the_next() -> None:
    with upstream("B"):
        scene = Scene(2)
        scene.table.numpy()[...] = scene.contents
        with scene.tensors.on(scene.stream):
            scene.destination[0, :4].copy_(scene.table[0, :4], non_blocking=True)  # and pool 1 was never reached
        seen = scene.arrived(by_pool(1))
        np.testing.assert_array_equal(seen[:, :1], scene.contents[:, :1])
        assert (seen[:, 1:] == UNTOUCHED).all()


def test_the_rest_is_the_tensors_own(scene: Scene) -> None:
    assert scene.destination.shape == scene.tensor.shape
    assert scene.destination.data_ptr() == scene.tensor.data_ptr()


def test_a_call_leaves_nothing_on_upstreams_objects_and_keeps_none_alive() -> None:
    """So a manager is copied, pickled and dumped as without us."""
    with standing_in("C"), applied(["staged-offsets-v1"]):
        server = Server({})
        stream, manager = server.tensors.stream(), server.manager
        before = dict(vars(manager))
        tensor = server.tensors.on_device(manager.num_pools, 4, 2, manager.max_blocks_per_seq)
        with server.tensors.on(stream):
            for each in (manager, copy(manager)):
                each.copy_batch_block_offsets(tensor, [], 1, 0, 0)
        stream.synchronize()
        assert vars(manager) == before
        seen = ref(tensor)
        del tensor
        assert seen() is None
        server.close()


def test_what_stands_for_a_tensor_answers_for_it_also_between_calls(scene: Scene) -> None:
    destination = scene.destination
    destination.end()
    assert destination.data_ptr() == scene.tensor.data_ptr() and destination.table is scene.table


# ---- for the tests of all fixes (proofs.py) ----


def from_the_live_table(destination: Any, index: Any) -> Any:
    """The V1 destination as upstream's own: the device reads the table when it gets there."""

    def copy_(source: Any, non_blocking: bool = False) -> None:
        del non_blocking
        pool, rows = index
        memory = destination.tensor.memory
        row_bytes = memory.nbytes // memory.shape[0] // memory.shape[1]
        device, stream = current_place()
        to = memory.address + pool * memory.shape[1] * row_bytes
        device.copy(to, source.data_ptr(), rows.stop * row_bytes, stream)

    return SimpleNamespace(copy_=copy_)


ROOM = "fixes.staged_offsets_v1"
BROKEN = Broken(f"{ROOM}.destination.StagedDestination.__getitem__", from_the_live_table)

CALLS = (
    f"{ROOM}.fix.StagedDestination",
    *(f"{ROOM}.destination.{name}" for name in ("StagedDestination.begin", "is_too_wide", "stream_for")),
    "staging.place.current_place",  # where the native part asks for the stream
    "staging.stagers.Stagers.of",
    "staging.stagers.current_place",
    "staging.stagers.OffsetStager",
)

PLACES = (
    *(Fault(name, variant, serve) for variant in ("A", "B", "C") for name in CALLS),
    Fault(f"{ROOM}.destination.StagedDestination.flush", "C", serve, attributes=(("staging.stagers.POOLS_MAX", 0),)),
)
