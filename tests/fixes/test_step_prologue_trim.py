"""Source that is newer than any variant of the stand-in skips a V2 launch whose rows it has shipped before (H10)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest.mock import Mock, patch

import pytest

from tests.executor.test_block_offsets_v2 import V2, Bench
from tests.fixes.applied import applied, only, standing_in
from tests.overlay.entries import attestation
from tests.standin.serving import Server
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.staged_offsets_v2.copy_filter import FILTER, CopyFilter
from trtllm_kvfix.fixes.staged_offsets_v2.fix import FIX
from trtllm_kvfix.overlay import prologue_trim
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import STEP_PROLOGUE_TRIM, V2_PLACES, Upstream
from trtllm_kvfix.sections import FixSettings

ID = "staged-offsets-v2"
MANAGER = V2_PLACES[0]
STEPS = 5  # with the table as it was


class Steps(Bench):
    """Two requests that generate, and a second batch that overwrites the copy index while a launch is pending."""

    def __init__(self) -> None:
        super().__init__(V2)
        for request_id in range(4):
            self.add(request_id, 9 + request_id)

    def step(self) -> bool:
        """Whether attention of this step reads its requests' pages."""
        return self.arrived(0, self.ship(0, [0, 1]))

    def torn(self) -> bool:
        """The same for a step whose launch is pending when the next writer comes."""
        return self.two_calls_while_held()[0]

    def grow(self) -> None:
        """A request comes to its next block, so the table changes."""
        cache: Any = self.manager.kv_cache_map[0]
        cache.resize(cache.capacity + self.manager.tokens_per_block)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    monkeypatch.setenv("STANDIN_STEP_PROLOGUE_TRIM", "1")
    with standing_in("F"):
        made = Steps()
        yield made
        made.server.close()


@pytest.fixture(params=["snapshot", "early_copy"])
def apply(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    registry = Registry(ALL)

    def now() -> None:
        settings = only(ID, tuning=FixSettings(staging_mode=request.param))
        assert registry.apply(settings, Upstream(), at_last=True).applied == (ID,)

    yield now
    assert registry.revert() == []


@contextmanager
def counted() -> Iterator[Mock]:
    """The manager's calls of its kernel."""
    module = import_module(MANAGER)
    name = "copy_batch_block_offsets_to_device"
    with patch.object(module, name, Mock(wraps=getattr(module, name))) as launch:
        yield launch


def test_without_the_trim_a_torn_launch_is_mended_by_the_next_step() -> None:
    with standing_in("F"):
        steps = Steps()
        assert not steps.torn()
        assert all(steps.step() for _ in range(STEPS))
        steps.server.close()


def test_with_the_trim_it_stays_until_the_table_changes(steps: Steps) -> None:
    assert not steps.torn()
    assert not any(steps.step() for _ in range(STEPS))
    steps.grow()
    assert steps.step()


@contextmanager
def in_mode(monkeypatch: pytest.MonkeyPatch, mode: str) -> Iterator[None]:
    trim = import_module(STEP_PROLOGUE_TRIM)
    monkeypatch.setenv(prologue_trim.VARIABLE, mode)
    trim.reload_mode()
    yield
    monkeypatch.delenv(prologue_trim.VARIABLE)
    trim.reload_mode()


def test_switched_off_it_is_mended_by_the_next_step(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_mode(monkeypatch, "0"):
        assert not steps.torn()
        assert all(steps.step() for _ in range(STEPS))


@pytest.mark.parametrize("fixed", [False, True], ids=["off", "on"])
def test_upstreams_own_check_ends_the_step_that_would_keep_it(
    steps: Steps, apply: Callable[[], None], fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fixed:
        apply()
    with in_mode(monkeypatch, "verify"):
        assert steps.torn() == fixed
        with nullcontext() if fixed else pytest.raises(import_module(STEP_PROLOGUE_TRIM).StepPrologueTrimVerifyError):
            assert steps.step()


@pytest.mark.parametrize(("value", "mode"), [("1", "on"), ("0", "off"), ("verify", "verify")])
def test_its_mode_is_what_upstream_says(steps: Steps, value: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prologue_trim.mode(Upstream()) == "on"
    with in_mode(monkeypatch, value):
        assert prologue_trim.mode(Upstream()) == attestation().prologue_trim == mode
    assert steps.step()


@pytest.mark.parametrize("broken", [None, lambda: 1 / 0])
def test_a_trim_that_does_not_answer_is_unknown(steps: Steps, broken: Any) -> None:
    with patch.object(import_module(STEP_PROLOGUE_TRIM), "step_prologue_trim_enabled", broken):
        assert prologue_trim.mode(Upstream()) == "unknown"
    assert steps.step()


def test_with_the_fix_no_launch_is_torn_and_equal_ones_are_still_skipped(
    steps: Steps, apply: Callable[[], None]
) -> None:
    apply()
    with counted() as launch:
        assert steps.torn()
        assert all(steps.step() for _ in range(STEPS))
        assert launch.call_count == 2, "one of each batch"
        steps.grow()
        assert steps.step() and launch.call_count == 3


def test_what_was_recorded_before_the_fix_came_is_not_trusted(steps: Steps, apply: Callable[[], None]) -> None:
    assert not steps.torn()
    assert not steps.step()
    apply()
    assert all(steps.step() for _ in range(STEPS))


def test_a_fix_that_comes_a_second_time_trusts_no_more_than_the_first_time(
    steps: Steps, apply: Callable[[], None]
) -> None:
    first = Registry(ALL)
    first.apply(only(ID), Upstream(), at_last=True)
    assert steps.step()
    first.revert()
    steps.grow()
    assert not steps.torn()
    apply()
    assert steps.step()


def test_a_filter_of_a_module_that_is_loaded_again_is_not_trusted_either(
    steps: Steps, apply: Callable[[], None]
) -> None:
    apply()
    assert steps.step(), "what the first filter records is trusted from now on"
    steps.grow()
    manager: Any = steps.manager
    loaded_again = import_module(STEP_PROLOGUE_TRIM).UnchangedCopyFilter()
    rows = [manager.index_mapper.get_index(request_id) for request_id in (0, 1)]
    never_shipped = manager.host_kv_cache_block_offsets.numpy()[:, rows, 0]
    loaded_again.record(steps.destinations[0], never_shipped)
    trim, asking = import_module(STEP_PROLOGUE_TRIM), import_module(MANAGER)
    with patch.object(trim, FILTER, loaded_again), patch.object(asking, FILTER, loaded_again):
        assert steps.step()


def test_the_filter_that_a_manager_goes_on_with_forgets(steps: Steps, apply: Callable[[], None]) -> None:
    """Its module has the old one, while the filter's own module has been loaded again."""
    trim = import_module(STEP_PROLOGUE_TRIM)
    assert not steps.torn()
    with patch.object(trim, FILTER, trim.UnchangedCopyFilter()):
        apply()
        assert steps.step()


@pytest.mark.parametrize("whole", [False, True], ids=["launch", "launch and call"])
def test_what_another_tool_launches_is_not_trusted(steps: Steps, apply: Callable[[], None], whole: bool) -> None:
    """It stands in the place of the fix's launch, and perhaps of the call around it; then it goes again."""
    manager = import_module(MANAGER)
    call, launch = manager.KVCacheManagerV2.copy_batch_block_offsets, manager.copy_batch_block_offsets_to_device
    apply()
    assert steps.step(), "the tensor is known to the fix"
    ours = manager.KVCacheManagerV2.copy_batch_block_offsets
    around = patch.object(manager.KVCacheManagerV2, "copy_batch_block_offsets", call if whole else ours)
    steps.grow()
    with patch.object(manager, "copy_batch_block_offsets_to_device", launch), around:
        assert not steps.torn()
    assert steps.step()
    with counted() as again:
        assert steps.step() and again.call_count == 0, "what the fix launches is trusted once more"


def test_a_record_that_cannot_be_judged_ends_nothing(
    steps: Steps, apply: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyFilter, "_distrust", lambda *_: 1 / 0)
    apply()
    assert steps.step()


def test_a_filter_that_cannot_forget_ends_nothing(
    steps: Steps, apply: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyFilter, "forget", lambda *_: 1 / 0)
    apply()
    assert steps.step()


@pytest.mark.parametrize("on", [False, True], ids=["off", "on"])
def test_a_server_that_skips_launches_is_right_with_the_fix_alone(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's own waits cover the target's launches, and not the draft's."""
    monkeypatch.setenv("STANDIN_STEP_PROLOGUE_TRIM", "1")
    with standing_in("F"), applied([ID]) if on else nullcontext():
        server = Server({**V2, "speculative_config": {}})
        with server.stall(draft=True) as stall:
            server.serve(server.workload(24))
        assert server.witness.corruptions == [] and server.draft_witness is not None
        wrong = {corruption.step for corruption in server.draft_witness.corrupt("block offsets")}
        assert not wrong if on else len(wrong) > stall.held / 2
        server.close()


def test_the_stand_in_has_no_trim_unless_it_is_asked_for() -> None:
    with standing_in("F"):
        with pytest.raises(ModuleNotFoundError):
            import_module(STEP_PROLOGUE_TRIM)
        assert prologue_trim.mode(Upstream(may_import=True)) == ""


copy_batch_block_offsets_to_device: Any = None  # the probe reads these sources, and nobody calls them


def gathers_to_compare(self: Any, dst: Any, ids: Any, beams: int, contexts: int, count: int) -> None:
    index = self.index_mapper.get_copy_index(ids, contexts, beams)
    self.index_mapper.gather_k_block_offsets(self.host_kv_cache_block_offsets, self._payload, ids, count)
    copy_batch_block_offsets_to_device(
        self.host_kv_cache_block_offsets, dst, index, self.index_scales, self.kv_offset, self._stream.cuda_stream
    )


def gathers_to_launch(self: Any, dst: Any, ids: Any, beams: int, contexts: int, count: int) -> None:
    index = self.index_mapper.get_copy_index(ids, contexts, beams)
    self.index_mapper.gather_k_block_offsets(self.host_kv_cache_block_offsets, self._rows, ids, count)
    copy_batch_block_offsets_to_device(
        self._rows, dst, index, self.index_scales, self.kv_offset, self._stream.cuda_stream
    )


def gathers_and_launches_something_else(self: Any, dst: Any, ids: Any, beams: int, contexts: int, count: int) -> None:
    index, table = self.index_mapper.get_copy_index(ids, contexts, beams), self.host_kv_cache_block_offsets
    self.index_mapper.gather_k_block_offsets(table, self._payload, ids, count)
    copy_batch_block_offsets_to_device(table, dst, index, self.index_scales, self.kv_offset, self._stream.cuda_stream)


@pytest.mark.parametrize(
    ("copy", "state"),
    [
        (gathers_to_compare, State.NEEDED),
        (gathers_to_launch, State.FIXED_UPSTREAM),
        (gathers_and_launches_something_else, State.UNKNOWN),
    ],
)
def test_rows_that_are_gathered_to_be_compared_are_no_repair(copy: Callable[..., None], state: State) -> None:
    with standing_in("F"):
        manager = import_module(MANAGER).KVCacheManagerV2
        with patch.object(manager, "copy_batch_block_offsets", copy):
            assert FIX.probe(Upstream()).state is state
