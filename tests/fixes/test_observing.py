"""On `observe` a fix changes nothing: upstream is as corrupt as alone, and dies as alone. What it would have done is
counted where something goes wrong, and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.executor.test_admission import overshoots
from tests.executor.test_graph_inputs import LORA, for_graphs
from tests.fixes.applied import standing_in
from tests.simulated import Bench
from tests.standin.admissions import EVAPORATION, SHARED_LEAF, arrive_between, fill_for_evaporation, leave_a_leaf
from tests.standin.serving import Server
from trtllm_kvfix import native
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.fix_ids import BLIND
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.graph_inputs.fix import ObservedReads
from trtllm_kvfix.fixes.input_copy_fence.fix import ObservedFence
from trtllm_kvfix.fixes.token_budget.fix import Preparation
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixChoices, FixSettings, Settings
from trtllm_kvfix.settings import load
from trtllm_kvfix.staging import on_stream

REQUESTS = 24
V1, V2, FENCE, GRAPHS = "staged-offsets-v1", "staged-offsets-v2", "input-copy-fence", "graph-inputs"
V2_ARGS: dict[str, Any] = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}
OF_PIPELINES = {"pipeline_parallel_size": 2}  # upstream's own fence is not in their loop
WAITING = {"disable_overlap_scheduler": True}  # for each step before the next is prepared
# Counters that acts of fixes change.
ACTS = ("staged_shipments", "fence_waits", "replay_waits", "budget_trims", "budget_deferrals", "stores_held_back")
# Variant, arguments, fix, whether upstream's own fence leaves only the draft to look at.
SHIPPED = [
    ("A", {}, V1, False),
    ("B", {}, V1, False),
    ("B2", {}, V1, False),
    ("C", {}, V1, False),
    ("B", V2_ARGS, V2, False),
    ("C", V2_ARGS, V2, False),
    ("D", V2_ARGS, V2, True),
    ("F", V2_ARGS, V2, True),
]


def observing(fix_id: str) -> Settings:
    chosen = {fix.id: "observe" if fix.id == fix_id else "off" for fix in ALL}
    return Settings(fixes=FixChoices.model_validate(chosen), tuning=FixSettings(read_back_every=1))


@contextmanager
def observed(fix_id: str) -> Iterator[Registry]:
    registry = Registry(ALL)
    before = counters.read()
    report = registry.apply(observing(fix_id), Upstream(), at_last=True)
    assert report.of(fix_id).word == "observing"
    try:
        yield registry
        assert registry.report().of(fix_id).faults == 0
        after = counters.read()
        assert {name: after[name] - before[name] for name in ACTS} == dict.fromkeys(ACTS, 0)
    finally:
        assert registry.revert() == []


def count_of(counter: counters.CounterByFix, fix_id: str) -> float:
    counters.read()
    return counter.by_fix().get(fix_id, 0)


class Counted:
    """Counts how much a counter has grown for a fix since this was made."""

    def __init__(self, counter: counters.CounterByFix, fix_id: str) -> None:
        self._of = (counter, fix_id)
        self._before = count_of(*self._of)

    def __call__(self) -> float:
        return count_of(*self._of) - self._before


def corrupt_steps(llm_args: dict[str, Any], what: str, *, draft: bool = False) -> int:
    """The corrupt steps of a server whose copies, the target's or the draft's, are held until the next step is
    ready.
    """
    server = Server(llm_args | ({"speculative_config": {}} if draft else {}))
    with server.stall(draft=draft):
        server.serve(server.workload(REQUESTS))
    witness = server.draft_witness if draft else server.witness
    assert witness is not None
    return len({each.step for each in witness.corrupt(what)})


@pytest.mark.parametrize(("variant", "llm_args", "fix_id", "draft"), SHIPPED)
def test_shipments_of_upstreams_own_that_arrive_late_are_counted(
    variant: str, llm_args: dict[str, Any], fix_id: str, draft: bool
) -> None:
    with standing_in(variant):
        alone = corrupt_steps(llm_args, "block offsets", draft=draft)
        assert alone > 0
        with observed(fix_id):
            wrong, looked = Counted(counters.table_mismatches, fix_id), Counted(counters.table_read_backs, fix_id)
            assert corrupt_steps(llm_args, "block offsets", draft=draft) == alone
            # Attention looks at the blocks of sequences; the read-back at whole rows.
            assert wrong() >= alone and looked() >= wrong()


@pytest.mark.parametrize(("variant", "llm_args", "fix_id", "draft"), SHIPPED)
def test_where_nothing_is_late_nothing_is_counted(
    variant: str, llm_args: dict[str, Any], fix_id: str, draft: bool
) -> None:
    with standing_in(variant), observed(fix_id):
        wrong, looked = Counted(counters.table_mismatches, fix_id), Counted(counters.table_read_backs, fix_id)
        assert corrupt_steps(llm_args | WAITING, "block offsets", draft=draft) == 0
        assert looked() > 0 and wrong() == 0


@pytest.mark.parametrize(
    ("variant", "llm_args"), [("A", {}), ("B", {}), ("C", {}), ("D", OF_PIPELINES), ("F", OF_PIPELINES)]
)
def test_steps_that_the_fence_would_have_kept_waiting_are_counted(variant: str, llm_args: dict[str, Any]) -> None:
    with standing_in(variant):
        alone = corrupt_steps(llm_args, "prompt lens")
        with observed(FENCE):
            acts = Counted(counters.observed, FENCE)
            assert corrupt_steps(llm_args, "prompt lens") == alone > 0
            assert acts() >= alone


def test_inputs_that_the_device_has_taken_keep_nobody_waiting() -> None:
    bench, fence = Bench(), ObservedFence()
    acts = Counted(counters.observed, FENCE)
    prepare, schedule = fence.recording(lambda engine: engine), fence.waiting(lambda executor: executor)
    with on_stream(bench.device, bench.stream):
        prepare("an engine")
        bench.device.synchronize(bench.stream)
        assert schedule("an executor") == "an executor" and acts() == 0
        with bench.held():
            prepare("an engine")
            assert schedule("an executor") == "an executor" and acts() == 1
            assert schedule("an executor") == "an executor" and acts() == 1


@pytest.mark.parametrize("variant", ["D", "F"])
def test_writes_that_graphs_had_yet_to_read_are_counted(variant: str) -> None:
    def corrupt(llm_args: dict[str, Any]) -> int:
        server = Server(llm_args)
        requests = for_graphs(server, server.workload(REQUESTS))
        with server.stall(replay=True):
            server.serve(requests)
        return len(server.witness.corruptions)

    with standing_in(variant):
        alone = corrupt(LORA)
        with observed(GRAPHS):
            acts = Counted(counters.observed, GRAPHS)
            assert corrupt(LORA) == alone > 0
            late = acts()
            assert late > 0
            assert corrupt(LORA | WAITING) == 0
            assert acts() == late


def test_reuse_that_upstreams_order_loses_is_counted() -> None:
    with standing_in("B"), observed("batched-admission"):
        acts = Counted(counters.observed, "batched-admission")
        before = counters.read()
        server = Server({**EVAPORATION, "max_num_tokens": 128})
        requests = fill_for_evaporation(server)
        assert acts() == 0
        server.serve(requests)
        assert [request.prepopulated_prompt_len for request in requests] == [0, 20]
        assert acts() == 1
        assert counters.read()["reuse_lost_tokens"] - before["reuse_lost_tokens"] == 20


@pytest.mark.parametrize(
    ("variant", "llm_args", "traffic"),
    [("B2", EVAPORATION, fill_for_evaporation), ("C", SHARED_LEAF, leave_a_leaf), ("D", EVAPORATION, arrive_between)],
)
def test_batches_that_exceed_the_budget_are_counted(variant: str, llm_args: dict[str, Any], traffic: Any) -> None:
    with standing_in(variant), observed("token-budget"):
        acts = Counted(counters.observed, "token-budget")
        server = Server(llm_args)
        requests = traffic(server)
        assert acts() == 0
        overshoots(server, requests)
        assert acts() == 1


def test_what_upstream_has_fixed_is_not_observed() -> None:
    with standing_in("D"):
        registry = Registry(ALL)
        report = registry.apply(observing(V1), Upstream(), at_last=True)
        assert (report.of(V1).word, report.applied) == ("fixed-upstream", ())
        registry.revert()


def test_every_fix_looks_on_or_says_why_it_cannot() -> None:
    for fix in ALL:
        assert (fix.counting_replacements is None) is (fix.id in BLIND), fix.id


@pytest.mark.parametrize(("fix_id", "why"), BLIND.items())
def test_one_that_cannot_is_refused_by_name_with_the_reason(fix_id: str, why: str) -> None:
    message = f"c.yaml: kvfix.fixes.{fix_id} is 'observe': this fix cannot observe: {why}; write"
    with pytest.raises(SettingsError, match=message):
        load(environ={}, section={"fixes": {fix_id: "observe"}}, where="c.yaml")


# Where the code that looks on is made to fail: the fix, the build and its arguments, and the place.
FAILING = [
    (V1, "B", {}, "fixes.staged_offsets_v1.destination.ObservedDestination.__init__"),
    (V1, "B", {}, "fixes.staged_offsets_v1.destination.recognised"),
    (V1, "A", {}, "fixes.staged_offsets_v1.destination.recognised"),
    (V2, "C", V2_ARGS, "fixes.staged_offsets_v2.fix._rows"),
    (V2, "B", V2_ARGS, "staging.read_back.ReadBack._enqueue"),
    (FENCE, "B", {}, "fixes.input_copy_fence.fix.ObservedFence._due"),
    (FENCE, "B", {}, "fixes.input_copy_fence.fix.ObservedFence.record"),
    ("batched-admission", "B", {}, "fixes.batched_admission.fix.advice_for"),
    ("batched-admission", "B", {}, "fixes.batched_admission.fix.measure"),
    ("token-budget", "C", {}, "fixes.token_budget.fix.limits_of"),
    ("token-budget", "C", {}, "fixes.token_budget.fix.Preparation.may_exceed"),
]


@pytest.mark.parametrize(("fix_id", "variant", "llm_args", "place"), FAILING)
def test_what_fails_while_looking_on_disturbs_nobody(
    fix_id: str, variant: str, llm_args: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def fails(*_: Any, **__: Any) -> Any:
        failed.append(place)
        raise RuntimeError("planted")

    with standing_in(variant):
        registry = Registry(ALL)
        registry.apply(observing(fix_id), Upstream(), at_last=True)
        monkeypatch.setattr(f"trtllm_kvfix.{place}", fails)
        server = Server(llm_args | WAITING)
        responses = server.serve(server.workload(REQUESTS))
        assert failed
        assert [response.error_msg for response in responses] == [None] * REQUESTS
        assert server.witness.corruptions == []
        registry.revert()


def test_a_plan_that_fails_leaves_the_batch_to_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("planted")

    with standing_in("C"):
        registry = Registry(ALL)
        registry.apply(observing("token-budget"), Upstream(), at_last=True)
        monkeypatch.setattr(Preparation, "plan", fails)
        server = Server(SHARED_LEAF)
        overshoots(server, leave_a_leaf(server))
        assert registry.report().of("token-budget").faults == 1
        registry.revert()


def test_marks_that_cannot_be_asked_keep_no_table_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("planted")

    bench, fuse = Bench(), Fuse(GRAPHS)
    reads = ObservedReads(fuse)
    monkeypatch.setattr(native.StreamMarks, "done", fails)
    with on_stream(bench.device, bench.stream), bench.held():
        reads.mark()
        reads.wait()
    assert fuse.faults == 1
