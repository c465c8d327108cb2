"""V2 calls on a held stream: a second call, and a row that gets a new owner, do not reach a call that was made."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.executor.test_block_offsets_v2 import PER_LAYER, V2, Bench
from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault, serve
from tests.fixes.proofs import Broken
from trtllm_kvfix.fixes.staged_offsets_v2.fix import ID, LAUNCH, StagedLaunch, probe
from trtllm_kvfix.native import OffsetStager
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.overlay.upstream import V2_UTILS, Upstream
from trtllm_kvfix.staging import current_place, stagers

BUILDS = [("B", V2), ("B2", V2), ("C", V2), ("D", V2), ("F", V2), ("D", PER_LAYER), ("F", PER_LAYER)]


@pytest.fixture(params=[(*build, wide) for build in BUILDS for wide in (False, True)], ids=str)
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    variant, llm_args, wide = request.param
    if wide:  # more pools than a stager takes
        monkeypatch.setattr(stagers, "POOLS_MAX", 1)
    with standing_in(variant), applied(["staged-offsets-v2"]):
        made = Bench(llm_args)
        yield made
        made.server.close()


def test_a_second_call_has_a_copy_index_of_its_own(bench: Bench) -> None:
    for request_id in range(4):
        bench.add(request_id, 9 + request_id)
    assert bench.two_calls_while_held() == (True, True)


def test_a_freed_row_that_is_bound_anew_does_not_reach_the_call(bench: Bench) -> None:
    ended = bench.add(0, 13)
    bench.add(1, 9)
    gate = bench.tensors.close_gate(bench.stream)
    expected = bench.ship(0, [1, 0])
    bench.manager.free_resources(ended)
    bench.add(2, 11)
    bench.tensors.open_gate(gate)
    assert bench.arrived(0, expected)


def test_many_calls_on_a_held_stream_keep_their_rows(bench: Bench) -> None:
    """More calls than a ring has slots cannot be held; these are as many as may be."""
    for request_id in range(3):
        bench.add(request_id, 9 + request_id)
    for batch in ([0, 1, 2], [2, 0], [1]):
        gate = bench.tensors.close_gate(bench.stream)
        expected = bench.ship(0, batch)
        other = bench.ship(1, [1, 2])
        bench.tensors.open_gate(gate)
        assert bench.arrived(0, expected) and bench.arrived(1, other)


@pytest.mark.parametrize(("variant", "llm_args"), BUILDS)
def test_another_engine_that_ships_in_between_reaches_nothing(
    variant: str, llm_args: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may come when the rows have been read out of the table and are not yet shipped."""
    with standing_in(variant), applied(["staged-offsets-v2"]):
        mine, theirs = Bench(llm_args), Bench(llm_args)
        mine.add(0, 13)
        theirs.add(7, 9)
        theirs.add(8, 11)
        assert theirs.arrived(0, theirs.ship(0, [8]))
        between = [lambda: theirs.ship(1, [7, 8])]

        def coming_between(ship: Callable[..., Any]) -> Callable[..., Any]:
            def shipping(*args: Any, **kwargs: Any) -> Any:
                if between:
                    between.pop()()
                return ship(*args, **kwargs)

            return shipping

        for kind, name in ((OffsetStager, "ship"), (StagedLaunch, "__call__")):
            monkeypatch.setattr(kind, name, coming_between(getattr(kind, name)))
        for _ in range(2):  # the second time a stager ships, whatever the build
            assert mine.arrived(0, mine.ship(0, [0]))
        for bench in (mine, theirs):
            bench.server.close()


@pytest.mark.parametrize("variant", ["D", "F"])
def test_scratch_ranges_are_those_of_the_call(variant: str) -> None:
    with standing_in(variant), applied(["staged-offsets-v2"]):
        bench = Bench(PER_LAYER)
        for request_id in range(2):
            bench.add(request_id, 9)
        manager: Any = bench.manager
        staging = [manager._host_scratch_begs_staging, manager.host_kv_cache_block_offsets]
        gate = bench.tensors.close_gate(bench.stream)
        bench.ship(0, [0])
        with bench.tensors.on(bench.stream):
            seen = bench.tensors.pinned(*manager._device_scratch_begs_staging.shape)
            seen.copy_(manager._device_scratch_begs_staging, non_blocking=True)
        bench.ship(1, [1])
        bench.tensors.open_gate(gate)
        bench.stream.synchronize()
        assert seen.numpy()[0, 0] == manager.kv_cache_map[0].get_scratch_desc(0)[0]
        assert staging[0] is manager._host_scratch_begs_staging
        assert staging[1] is manager.host_kv_cache_block_offsets
        bench.server.close()


def broken_stager(_stagers: Any, layout: Any, table: Any, *parts: Any) -> OffsetStager:
    """It fails in its native part."""
    pools, rows, _, blocks = table.shape
    made = OffsetStager(
        num_pools=pools, rows_max=rows, blocks_max=blocks, device=current_place().device, **layout(*parts)
    )
    made.close()
    kept.append(made)  # the launch refers to it weakly
    return made


kept: list[OffsetStager] = []


@pytest.mark.parametrize("variant", ["C", "D", "F"])
def test_a_failure_in_the_native_part_is_counted_and_the_launch_is_made(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stagers.Stagers, "of_lasting", broken_stager)
    with standing_in(variant), applied([ID]):
        bench = Bench(V2)
        for request_id in range(4):
            bench.add(request_id, 9 + request_id)
        for faults in range(1, 4):
            assert bench.arrived(0, bench.ship(0, [faults]))
            assert fuse.of(ID).faults == faults
        assert fuse.of(ID).blown and "close()" in fuse.of(ID).first_error
        assert bench.arrived(0, bench.ship(0, [0])) and fuse.of(ID).faults == 3
        bench.server.close()


def test_a_launch_that_succeeds_ends_a_row_of_faults() -> None:
    with standing_in("C"), applied([ID]):
        bench = Bench(V2)
        bench.add(0, 9)
        for _ in range(2):  # the second time a stager ships
            fuse.of(ID).in_a_row = 2
            assert bench.arrived(0, bench.ship(0, [0]))
            assert fuse.of(ID).in_a_row == 0
        bench.server.close()


@pytest.mark.parametrize("variant", ["B", "C", "F"])
def test_a_probe_that_finds_the_fix_in_place_still_says_that_it_is_needed(variant: str) -> None:
    """A second registry looks at what stands in upstream's modules."""
    with standing_in(variant), applied([ID]):
        assert probe(Upstream()).state is State.NEEDED


def test_other_arguments_are_upstreams_to_refuse() -> None:
    with standing_in("C"):
        module: Any = import_module(V2_UTILS)
        with pytest.raises(TypeError) as theirs:
            getattr(module, LAUNCH)(1, 2)
        with applied([ID]):
            with pytest.raises(TypeError) as ours:
                getattr(module, LAUNCH)(1, 2)
            assert fuse.of(ID).faults == 0
    assert str(ours.value) == str(theirs.value)


# ---- for the tests of all fixes (proofs.py) ----


def by_the_kernel(*_: Any) -> Callable[..., Any]:
    """A V2 launch that leaves rows and copy index to upstream's kernel, which reads them when it runs."""

    def launch(table: Any, output: Any, index: Any, scales: Any, offsets: Any, stream: int) -> None:
        width, factors = output.memory.shape[3], (scales.tolist(), offsets.tolist())
        current_place().device.gather_host_rows(
            output.memory, table.memory, index.memory, len(index.numpy()), width, *factors, stream
        )

    return launch


ROOM = "fixes.staged_offsets_v2"
BROKEN = Broken(f"{ROOM}.fix.StagedLaunch", by_the_kernel)

DRAFTING: dict[str, Any] = {"speculative_config": {}}
TOO_WIDE = (("staging.stagers.POOLS_MAX", 1),)

CALLS = (
    *(f"{ROOM}.fix.{name}" for name in ("is_on_device", "is_too_wide")),
    "staging.stagers.current_place",
    "staging.stagers.OffsetStager",
)
UNSCALED = (f"{ROOM}.fix.memory_of", "native.OffsetStager.ship")
WIDE = (
    *(f"{ROOM}.fix.{name}" for name in ("private_lot", "keep_until_read")),
    f"{ROOM}.fix.current_place",
    *(f"native.Device.{name}" for name in ("outside_captures", "create_event", "record", "done")),
)

PLACES = (
    *(Fault(name, "B", serve, V2) for name in (*CALLS, *UNSCALED)),
    *(Fault(name, "C", serve, V2) for name in CALLS),
    *(Fault(name, variant, serve, V2 | DRAFTING, draft=True) for variant in ("D", "F") for name in CALLS),
    Fault("staging.stagers.Stagers.of", "B", serve, V2),
    Fault("staging.stagers.Stagers.of_lasting", "C", serve, V2),
    Fault(f"{ROOM}.fix.v2", "C", serve, V2),
    Fault(f"{ROOM}.copy_filter.CopyFilter.forget", "F", serve, V2 | DRAFTING, draft=True, stands_down=False),
    *(Fault(name, variant, serve, V2, attributes=TOO_WIDE) for variant in ("B", "C") for name in WIDE),
    *(Fault(f"{ROOM}.fix.{name}", "D", serve, PER_LAYER | DRAFTING, draft=True)
      for name in ("_private", "fresh_pinned")),
)  # fmt: skip
