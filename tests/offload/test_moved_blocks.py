"""V2 puts the block of a request that has computed the same tokens in the place of another's, gives the other away, and
tells no connector. What is stored is read where it lies when the store is planned."""

from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.native import Device

from .conftest import MakeBench, serve_alone
from .executor import TOKENS_PER_BLOCK, Executor
from .test_weights import stores_held
from .upstream_double import ConnectorManager, Request, SchedulerOutput

FIRST, SECOND, THIRD, LATER = 1, 2, 3, 4
PROMPT, OTHER = list(range(1, 10)), list(range(100, 104))
WHOLE = len(PROMPT) // TOKENS_PER_BLOCK


class NotWorthStoring(ConnectorManager):
    """The first request asks for too little to be kept in the host tier."""

    def tell(self, output: SchedulerOutput) -> None:
        for data in output.new_requests:
            if data.request_id == FIRST:
                data.priorities = [0] * len(data.new_block_ids)
        super().tell(output)


class MovingExecutor(Executor):
    """A V2 manager as far as the connector asks it, with the rows that its requests have now."""

    impl = SimpleNamespace(layer_grouping=[[0]])

    def __init__(self, device: Device, manager: ConnectorManager, **sizes: Any) -> None:
        self.moved: dict[int, list[int]] = {}  # by request: its leading blocks
        self.away: set[int] = set()  # requests that have no pages on the device
        super().__init__(device, manager, **sizes)

    def blocks_of(self, request: Request) -> list[int]:
        moved = self.moved.get(request.request_id, [])
        return moved + super().blocks_of(request)[len(moved) :]

    @property
    def kv_cache_map(self) -> dict[int, Any]:
        def cache_of(request: Request) -> Any:
            return SimpleNamespace(
                is_active=request.request_id not in self.away,
                get_base_page_indices=lambda _group: self.blocks_of(request),
            )

        return {each.request_id: cache_of(each) for each in self.active}


def two_have_computed_the_same(make_bench: MakeBench) -> tuple[Any, list[int]]:
    """The second one's blocks are the first one's now. Returns what it had."""
    bench = make_bench(
        executor_class=MovingExecutor, manager_class=NotWorthStoring, offload_priority_min=1, admission="all"
    )
    executor: Any = bench.executor
    first, second = Request(FIRST, list(PROMPT), 6), Request(SECOND, list(PROMPT), 6)
    executor.submit(first, second)
    executor.step()
    had = executor.blocks_of(second)[:WHOLE]
    executor.moved[SECOND] = executor.blocks_of(first)[:WHOLE]
    return bench, had


def the_third_writes_before_the_store_reads(bench: Any, had: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a block of the second's in the very step whose report has the store planned."""
    executor = bench.executor
    with stores_held(bench, monkeypatch) as let_go:
        executor.moved[THIRD] = had[:1]
        executor.submit(Request(THIRD, list(OTHER), 1))
        executor.step()
        assert bench.worker.side._transfers.running(), "the store is on its way"
        bench.device.synchronize(executor.stream)
        let_go()
        executor.run()
    bench.settle()
    assert executor.corrupt == []


def test_a_store_reads_the_block_that_took_the_place(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, had = two_have_computed_the_same(make_bench)
    the_third_writes_before_the_store_reads(bench, had, monkeypatch)
    assert serve_alone(bench, Request(LATER, list(PROMPT))) == WHOLE * TOKENS_PER_BLOCK
    assert bench.executor.corrupt == []


def test_a_block_that_was_recorded_is_anothers_by_then(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the connector goes by what upstream has told it."""
    bench, had = two_have_computed_the_same(make_bench)
    bench.scheduler.side._link.slots_now = lambda *_: None
    the_third_writes_before_the_store_reads(bench, had, monkeypatch)
    assert serve_alone(bench, Request(LATER, list(PROMPT))) == WHOLE * TOKENS_PER_BLOCK
    assert set(bench.executor.corrupt) == {LATER}


@pytest.mark.parametrize("comes_back", [True, False], ids=["comes back", "stays away"])
def test_blocks_of_a_suspended_request_are_stored_when_they_lie_somewhere(
    make_bench: MakeBench, *, comes_back: bool
) -> None:
    bench, _ = two_have_computed_the_same(make_bench)
    executor = bench.executor
    executor.away.add(SECOND)
    executor.step()
    assert not bench.worker.side._transfers.running() and bench.index.stats().owned == 0
    if comes_back:
        executor.away.clear()
    executor.run()
    bench.settle()
    assert serve_alone(bench, Request(LATER, list(PROMPT))) == WHOLE * TOKENS_PER_BLOCK * comes_back
    assert executor.corrupt == []
