"""Code that launches V2's kernel by a name of its own, or replaces it, is racy without the fix and right with it.

Models have their own managers; their modules may have been imported before the fix was applied, or may come later.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from tests.executor.test_block_offsets_v2 import V2, Bench
from tests.fixes.applied import CREATOR, applied, standing_in
from tests.fixes.test_block_offsets import WITH_DRAFT, corrupt_steps
from tests.standin.fixture import upstream
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.staged_offsets_v2 import fix as staged_offsets_v2
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.activation import Activation
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import STEP_COPIES, V2_UTILS, Upstream
from trtllm_kvfix.sections import Settings

ID = "staged-offsets-v2"
LAUNCH = staged_offsets_v2.LAUNCH
MINIMAX = "tensorrt_llm._torch.attention_backend.sparse.minimax_m3"
OWN_MANAGER = V2 | {"architecture": "minimax_m3"}


def two_batches_on_a_held_stream(bench: Bench) -> bool:
    """Whether both arrive as they were at their calls."""
    for request_id in range(4):
        bench.add(request_id, 9 + request_id)
    right: list[bool] = []
    for _ in range(3):  # the stager takes over from private rows
        right += bench.two_calls_while_held()
    bench.server.close()
    return all(right)


@pytest.mark.parametrize("variant", ["D", "F"])
@pytest.mark.parametrize("early", [True, False], ids=["imported before", "imported later"])
def test_a_manager_that_launches_by_its_own_name_is_mended(variant: str, early: bool) -> None:
    with standing_in(variant):
        original = getattr(import_module(V2_UTILS), LAUNCH)
        if early:
            assert getattr(import_module(MINIMAX), LAUNCH) is original
            assert not two_batches_on_a_held_stream(Bench(OWN_MANAGER))
        with applied([ID]) as registry:
            assert two_batches_on_a_held_stream(Bench(OWN_MANAGER))
            assert registry.aliases() == []
        assert getattr(import_module(MINIMAX), LAUNCH) is original
        assert not two_batches_on_a_held_stream(Bench(OWN_MANAGER))


def test_mending_the_managers_module_alone_leaves_it_racy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "_replace_late", lambda *_: None)
    with standing_in("D"):
        import_module(MINIMAX)
        with applied([ID]) as registry:
            assert not two_batches_on_a_held_stream(Bench(OWN_MANAGER))
            assert f"{MINIMAX}.{LAUNCH}" in registry.aliases()


@pytest.mark.parametrize("variant", ["D", "F"])
def test_its_draft_pools_are_right_in_traffic(variant: str) -> None:
    require_a_draft_to_be_mended(variant, OWN_MANAGER)


def require_a_draft_to_be_mended(variant: str, manager: dict[str, Any]) -> None:
    """In traffic, where upstream's own fence covers the target alone."""

    def arm() -> int:
        return corrupt_steps({**manager, **WITH_DRAFT}, draft=True)

    with standing_in(variant):
        assert arm() > 0
        with applied([ID]):
            assert arm() == 0
        assert arm() > 0


# ---- a kernel of another kind ----


class BenchOfStage(Bench):
    """Ships as callers of the stage do: what it does not cover they launch themselves."""

    def ship(self, which: int, request_ids: list[int]) -> Any:
        manager, destination = self.manager, self.destinations[which]
        copy_index = manager.index_mapper.get_copy_index(request_ids, len(request_ids), 1)
        at = (destination, manager.host_kv_cache_block_offsets, copy_index, manager.index_scales, manager.kv_offset)
        stage = import_module(STEP_COPIES).StepInputStage(64)
        stage.begin()
        with self.tensors.on(self.stream):
            if not stage.block_copy(*at):
                launch = getattr(import_module(type(manager).__module__), LAUNCH)
                launch(at[1], destination, *at[2:], self.stream.cuda_stream)
            stage.commit()
        return manager.standin_truth(request_ids, [1] * len(request_ids))


@contextmanager
def active() -> Iterator[Registry]:
    """The import hook is there, as in a server."""
    made = Activation(Registry(ALL), ())
    made.activate(Settings(runtime_dir=None))
    try:
        yield made.registry
    finally:
        assert made.deactivate() == []


@pytest.mark.parametrize("early", [True, False], ids=["imported before", "imported later"])
def test_a_kernel_that_notes_addresses_is_told_that_it_does_not_cover_this(early: bool) -> None:
    with upstream("F"):
        import_module(CREATOR)
        if early:
            assert not two_batches_on_a_held_stream(BenchOfStage(V2))
        with active() as registry:
            assert (STEP_COPIES in import_module("sys").modules) == early
            assert two_batches_on_a_held_stream(BenchOfStage(V2))
            assert f"{STEP_COPIES}:{staged_offsets_v2.BLOCK_COPY}" in registry.report().of(ID).seams
        assert not two_batches_on_a_held_stream(BenchOfStage(V2))


# ---- what cannot be replaced ----


def unreplaceable(_: Upstream) -> list[Replacement]:
    return [Replacement(Seam(V2_UTILS, "Gone.launch"), lambda found: found)]


def raising(_: Upstream) -> list[Replacement]:
    raise LookupError("odd")


@pytest.mark.parametrize(("late", "named", "faults"), [(unreplaceable, True, 0), (raising, False, 1)])
def test_a_late_replacement_that_cannot_be_made_is_named_and_ends_nothing(
    late: Callable[[Upstream], list[Replacement]],
    named: bool,
    faults: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fix = next(each for each in ALL if each.id == ID)
    before = fuse.of(ID).faults
    with standing_in("D"):
        registry = Registry([type(fix)(**{**vars(fix), "late_replacements": late})])
        for _ in range(2):
            report = registry.apply(Settings(), Upstream(), at_last=True)
        assert report.applied == (ID,)
        assert (f"{V2_UTILS}.Gone.launch" in registry.aliases()) == named
        assert caplog.text.count("is NOT guarded by fix") == int(named)
        assert (report.of(ID).faults - before > 0) == bool(faults)
        assert registry.revert() == []
