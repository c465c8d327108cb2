"""DeepSeek-V4's manager copies its tables itself: racy without the fix, and right with it."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.executor.test_block_offsets_v2 import V2, Bench
from tests.fixes.applied import CREATOR, applied, standing_in
from tests.fixes.test_native_launch import active, require_a_draft_to_be_mended
from tests.standin.fixture import upstream
from trtllm_kvfix.fixes.staged_offsets_v2 import fix as staged_offsets_v2
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import DEEPSEEK_V4
from trtllm_kvfix.staging.read_back import BAD_PAGE

ID = staged_offsets_v2.ID
OWN_MANAGER = V2 | {"architecture": "deepseek_v4"}
VARIANTS = ["D", "F"]  # the buffers that are filled again; the live table, the copy index and scratch ranges
FIRST, SECOND = [0, 1], [2, 3]
Shown = Callable[["Tables"], bool]


class Tables(Bench):
    """A manager with four requests."""

    def __init__(self) -> None:
        super().__init__(OWN_MANAGER)
        for request_id in (*FIRST, *SECOND):
            self.add(request_id, 9 + request_id)

    def ship(self, which: int, request_ids: list[int]) -> np.ndarray[Any, Any]:
        """As its metadata does."""
        if hasattr(self.manager, "compute_sliding_block_tables"):
            with self.tensors.on(self.stream):
                self.manager.compute_sliding_block_tables(request_ids, len(request_ids))
        return super().ship(which, request_ids)

    def compressed(self, ratio: int) -> bool:
        """Whether the first of two batches gets its own pages, while the stream is held."""
        destinations = [self.tensors.on_device(4, self.manager.max_blocks_per_seq) for _ in range(2)]
        gate = self.tensors.close_gate(self.stream)
        expected = self.manager.standin_compressed(FIRST, ratio)
        with self.tensors.on(self.stream):
            for destination, batch in zip(destinations, (FIRST, SECOND), strict=True):
                self.manager.copy_batch_compress_block_tables(destination, batch, ratio, 1, 2, 2)
        self.tensors.open_gate(gate)
        seen = self.tensors.pinned(4, self.manager.max_blocks_per_seq)
        with self.tensors.on(self.stream):
            seen.copy_(destinations[0])
        rows = [row[: len(pages)].tolist() for row, pages in zip(seen.numpy(), expected, strict=False)]
        return bool(rows == expected)

    def rewritten(self) -> bool:
        """Whether a batch arrives as it was, although its rows and scratch ranges change before the device reads."""
        gate = self.tensors.close_gate(self.stream)
        expected = self.ship(0, FIRST)
        self.manager.host_kv_cache_block_offsets.fill_(77)
        self.tensors.open_gate(gate)
        return self.arrived(0, expected)


def two_batches(tables: Tables) -> bool:
    return all(tables.two_calls_while_held())


def each_ratio(tables: Tables) -> bool:
    return all(tables.compressed(ratio) for ratio in (4, 128))


def rows_behind(tables: Tables) -> set[int]:
    """What arrives behind the rows of a batch."""
    tables.ship(0, FIRST)
    seen = tables.tensors.pinned(*tables.destinations[0].shape)
    with tables.tensors.on(tables.stream):
        seen.copy_(tables.destinations[0])
    return set(seen.numpy()[:, len(FIRST) :].ravel().tolist())


def test_what_the_method_does_not_write_arrives_as_upstream_keeps_it() -> None:
    with standing_in("D"):
        assert shown_of(rows_behind) == {BAD_PAGE}
        with applied([ID]):
            assert shown_of(rows_behind) == {BAD_PAGE}


def shown_of(look: Callable[[Tables], Any]) -> Any:
    tables = Tables()
    try:
        return look(tables)
    finally:
        tables.server.close()


def shows(shown: Shown) -> bool:
    return bool(shown_of(shown))


CASES = [("D", two_batches), ("D", each_ratio), ("F", two_batches), ("F", each_ratio), ("F", Tables.rewritten)]


@pytest.mark.parametrize(("variant", "shown"), CASES)
def test_what_it_copies_is_the_calls_own(variant: str, shown: Shown) -> None:
    with standing_in(variant):
        assert not shows(shown)
        with applied([ID]) as registry:
            assert shows(shown)
            assert registry.aliases() == []
        assert not shows(shown)


@pytest.mark.parametrize(("variant", "shown"), CASES)
def test_a_manager_that_is_imported_later_is_mended(variant: str, shown: Shown) -> None:
    with upstream(variant):
        import_module(CREATOR)
        with active():
            assert DEEPSEEK_V4 not in sys.modules
            assert shows(shown)
        assert not shows(shown)


@pytest.mark.parametrize(("variant", "shown"), CASES)
def test_the_other_replacements_do_not_reach_it(variant: str, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_offsets_v2, "own_copies", lambda _: ())
    with standing_in(variant), applied([ID]):
        assert not shows(shown)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_draft_models_manager_is_right_in_traffic(variant: str) -> None:
    require_a_draft_to_be_mended(variant, OWN_MANAGER)


def rows_of_two_questions(manager: Any) -> list[Any]:
    """As by a method that asks for the copy index twice."""
    found = []
    for batch in (FIRST, SECOND):
        index = manager.index_mapper.get_copy_index(batch, len(batch), 1)
        found.append(manager.host_kv_cache_block_offsets.numpy()[:, index.numpy(), 0].tolist())
    return found


def test_a_method_may_ask_for_the_copy_index_twice() -> None:
    with standing_in("F"), applied([ID]):
        tables = Tables()
        before, faults = dict(vars(tables.manager)), fuse.of(ID).faults
        own = staged_offsets_v2.private_tables(staged_offsets_v2.OF_LAYERS, rows_of_two_questions)
        with tables.tensors.on(tables.stream):
            assert own(tables.manager) == rows_of_two_questions(tables.manager)
        assert {name: vars(tables.manager)[name] for name in before} == before
        assert fuse.of(ID).faults == faults
        tables.server.close()


def test_a_method_with_the_table_and_buffers_of_its_own_gets_both_fresh() -> None:
    source = """
    def copy_batch_block_offsets(self, request_ids):
        self._device.copy_(self.host_kv_cache_block_offsets)
        self._other.copy_(self._host_other_staging)
    """
    made = staged_offsets_v2._with_fresh_memory(source, "copy_batch_block_offsets")
    assert made is not None
    with standing_in("F"), applied([ID]):
        tables = Tables()
        other = tables.manager._host_other_staging = tables.tensors.pinned(4)
        seen: list[Any] = []

        def method(self: Any) -> None:
            self.index_mapper.get_copy_index(FIRST, len(FIRST), 1)
            seen.append(self._host_other_staging)

        with tables.tensors.on(tables.stream):
            made(method)(tables.manager)
        assert seen[0] is not other and tables.manager._host_other_staging is other
        tables.server.close()


# ---- where memory cannot be fresh, the call waits ----


def _unreadable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(staged_offsets_v2, "_with_fresh_memory", lambda _source, _name: staged_offsets_v2._waiting)


def _too_large(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(staged_offsets_v2, "FRESH_BYTES_MAX", 16)


def _failing(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError("planted")

    patch.setattr(staged_offsets_v2, "fresh_pinned", fail)


def _no_mapper_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """It is an attribute of the class, so it cannot be another during a call."""
    manager = import_module(DEEPSEEK_V4).DeepseekV4CacheManager
    patch.setattr(manager, "index_mapper", property(lambda self: self.mapper_, _set_mapper), raising=False)


def _set_mapper(manager: Any, mapper: Any) -> None:
    manager.mapper_ = mapper


WAITS = [  # and how often, in two batches
    ("D", _unreadable, 2),
    ("D", _too_large, 2),
    ("D", _failing, 2),
    ("F", _unreadable, 4),  # also in the method that copies from the device
    ("F", _failing, 2),
    ("F", _no_mapper_of_its_own, 2),
]


@pytest.mark.parametrize(("variant", "change", "times"), WAITS)
def test_a_call_without_fresh_memory_waits(
    variant: str, change: Callable[[pytest.MonkeyPatch], None], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever for a stream that is held until it has returned."""
    waits = 0

    def finish(*_: Any) -> None:
        nonlocal waits
        waits += 1

    with standing_in(variant):
        import_module(DEEPSEEK_V4)
        change(monkeypatch)
        monkeypatch.setattr(staged_offsets_v2, "finish", finish)
        with applied([ID]):
            assert not shows(two_batches), "nothing else guards it"
            assert waits == times
    fuse.reset(ID)


@pytest.mark.parametrize("stood_down", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_upstreams_exception_passes_and_its_manager_stays_as_it_was(variant: str, stood_down: bool) -> None:
    with standing_in(variant), applied([ID]):
        tables = Tables()
        before = dict(vars(tables.manager))
        fuse.of(ID).blown = stood_down
        faults = fuse.of(ID).faults
        for call in (
            lambda: tables.ship(0, [99]),
            lambda: tables.manager.copy_batch_compress_block_tables(None, [99], 4, 1, 1, 1),
        ):
            with pytest.raises(Exception, match="99") as raised:
                call()
            assert raised.value.__context__ is None
            assert {name: vars(tables.manager)[name] for name in before} == before
        assert fuse.of(ID).faults == faults
        tables.server.close()
    fuse.reset(ID)


def test_its_seams_are_attested() -> None:
    with standing_in("F"):
        import_module(DEEPSEEK_V4)
        with applied([ID]) as registry:
            assert isinstance(registry, Registry)
            seams = {seam for seam in registry.report().of(ID).seams if DEEPSEEK_V4 in seam}
    of_manager = f"{DEEPSEEK_V4}:DeepseekV4CacheManager."
    assert seams == {
        f"{of_manager}compute_sliding_block_tables",
        f"{of_manager}copy_batch_compress_block_tables",
    }, "copies from the device alone are left alone"
