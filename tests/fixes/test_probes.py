"""Each probe answers right for each variant, and admits that it does not know what it has never seen."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import pytest

from tests.fixes.applied import CREATOR, standing_in
from tests.standin.fixture import VARIANTS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import Answer, Fix, State
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import Settings

EXECUTOR = "tensorrt_llm._torch.pyexecutor"
BINDINGS = "tensorrt_llm.bindings.internal.batch_manager"


def fix_of(fix_id: str) -> Fix:
    return next(fix for fix in ALL if fix.id == fix_id)


@contextmanager
def all_imported(variant: str) -> Iterator[None]:
    """Everything that a fix looks at, with NIXL installed."""
    with standing_in(variant, nixl=True):
        for name in {name for fix in ALL for name in fix.triggers}:
            with suppress(ModuleNotFoundError):
                import_module(name)
        yield


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_probe_finds_what_its_record_expects(variant: str) -> None:
    with all_imported(variant):
        answers = {fix.id: fix.probe(Upstream()) for fix in ALL}
    assert {name: answer.state for name, answer in answers.items()} == {fix.id: fix.expected[variant] for fix in ALL}
    assert all(answer.reason for answer in answers.values())


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.id)
def test_without_tensorrt_llm_nothing_is_applicable(fix: Fix) -> None:
    assert "tensorrt_llm" not in sys.modules
    assert fix.probe(Upstream()).state is State.NOT_APPLICABLE


Mangle = Callable[[pytest.MonkeyPatch], None]


def owner_of(module: str, path: str) -> tuple[Any, str]:
    owner: Any = sys.modules[module]
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


def replaced(module: str, path: str) -> Mangle:
    """The same name with another interface, as a later upstream may have it; or a name that was not there."""

    def mangle(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(*owner_of(module, path), lambda self, plan: (self, plan), raising=False)

    return mangle


def without(module: str, path: str) -> Mangle:
    def mangle(monkeypatch: pytest.MonkeyPatch) -> None:
        owner, name = owner_of(module, path)
        for holder in owner.__mro__:
            if name in vars(holder):
                monkeypatch.delattr(holder, name)

    return mangle


RESOURCES = f"{EXECUTOR}.resource_manager"
REPORTS = f"{EXECUTOR}.connectors.kv_cache_connector"
LOOP = f"{EXECUTOR}.py_executor"
ENGINE = f"{EXECUTOR}.model_engine"
ATTENTION = "tensorrt_llm._torch.attention_backend.trtllm"
GRAPHS = f"{EXECUTOR}.cuda_graph_runner"
LORA = "tensorrt_llm._torch.peft.lora.cuda_graph_lora_params"
V2 = f"{EXECUTOR}.kv_cache.kv_cache_manager_v2"

MANGLED = [
    ("staged-offsets-v1", "B", replaced(RESOURCES, "KVCacheManager.copy_batch_block_offsets")),
    ("staged-offsets-v1", "A", replaced(ATTENTION, "TrtllmAttentionMetadata.prepare")),
    ("staged-offsets-v2", "B", replaced(RESOURCES, "copy_batch_block_offsets_to_device")),
    ("staged-offsets-v2", "D", replaced(V2, "KVCacheManagerV2.copy_batch_block_offsets")),
    ("computed-blocks", "B", without(BINDINGS, "KVCacheManager.store_context_blocks")),
    ("computed-blocks", "A", replaced(BINDINGS, "BaseKVCacheManager.remove_sequence")),
    ("connector-prefixes", "F", replaced(V2, "KVCacheManagerV2._resize_for_connector_prefix")),
    ("connector-prefixes", "F", replaced(V2, "KVCacheManagerV2.prepare_context_cache")),
    ("connector-prefixes", "F", without(V2, "KVCacheManagerV2._stale_block_range")),
    ("connector-prefixes", "F", without(V2, "KVCacheManagerV2.probe_context_reuse")),
    ("partial-copies", "B", replaced(RESOURCES, "KVCacheManager.__init__")),
    ("partial-copies", "B", without(BINDINGS, "KVCacheManager.add_sequence")),
    ("batched-admission", "B", replaced(RESOURCES, "ResourceManager.prepare_resources")),
    ("batched-admission", "B", without(BINDINGS, "KVCacheManager.add_sequence")),
    ("batched-admission", "B", replaced(BINDINGS, "KVCacheManager.find_new_context_block")),
    ("batched-admission", "B2", replaced(BINDINGS, "KVCacheManager.count_reusable_blocks")),
    ("batched-admission", "B", without(RESOURCES, "KVCacheManager._kv_connector_should_add_sequence")),
    ("token-budget", "C", replaced(RESOURCES, "ResourceManager.prepare_resources")),
    ("token-budget", "B2", replaced(LOOP, "PyExecutor._schedule")),
    ("token-budget", "D", replaced(REPORTS, "KvCacheConnectorManager.build_scheduler_output")),
    ("concurrent-pins", "C", without(BINDINGS, "KVCacheManager.add_token")),
    ("input-copy-fence", "B", replaced(ENGINE, "PyTorchModelEngine.wait_for_input_copy")),
    ("input-copy-fence", "D", without(ENGINE, "PyTorchModelEngine.wait_for_input_copy")),
    ("input-copy-fence", "B", without(ENGINE, "PyTorchModelEngine._prepare_inputs")),
    ("graph-inputs", "D", replaced(LORA, "CudaGraphLoraParams.get_moe_slot_inputs")),
    ("graph-inputs", "D", replaced(LORA, "CudaGraphLoraParams.update_sorted_indices")),
    ("graph-inputs", "F", without(LORA, "CudaGraphLoraParams.update_weight_pointers")),
    ("graph-inputs", "D", replaced(GRAPHS, "CUDAGraphRunner.replay")),
    ("graph-inputs", "F", without(GRAPHS, "CUDAGraphRunner.capture")),
]


@pytest.mark.parametrize("place", ["_pp_schedule_and_propagate", "_executor_loop_pp"])
def test_a_pipeline_that_waits_itself_needs_no_fence(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As upstream's may in a later release; or it may have no such step."""

    def waits(self: Any) -> None:
        self._wait_for_model_engine_input_copy()

    fence = fix_of("input-copy-fence")
    with standing_in("D"):
        needed = fence.probe(Upstream())
        assert (needed.state, needed.only_with) == (State.NEEDED, "pipeline parallelism")
        monkeypatch.setattr(*owner_of(LOOP, f"PyExecutor.{place}"), waits)
        assert fence.probe(Upstream()).state is State.FIXED_UPSTREAM
        monkeypatch.undo()
        without(LOOP, "PyExecutor._pp_schedule_and_propagate")(monkeypatch)
        assert fence.probe(Upstream()).state is State.FIXED_UPSTREAM
        monkeypatch.undo()


@pytest.mark.parametrize(("fix_id", "variant", "mangle"), MANGLED)
def test_what_a_probe_has_not_seen_is_unknown_and_not_applied(
    fix_id: str, variant: str, mangle: Mangle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing_in(variant):
        mangle(monkeypatch)
        answer = fix_of(fix_id).probe(Upstream())
        assert answer.state is State.UNKNOWN, answer
        registry = Registry(ALL)
        try:
            report = registry.apply(Settings(), Upstream(), at_last=True)
            assert report.of(fix_id).word == "unknown" and fix_id not in report.applied
        finally:
            registry.revert()
        monkeypatch.undo()


COPY_V1 = "KVCacheManager.copy_batch_block_offsets"
COPY_V2 = "KVCacheManagerV2.copy_batch_block_offsets"
UNCALLABLE = [
    ("staged-offsets-v1", "B", RESOURCES, COPY_V1, "dst_tensor, request_ids, beam_width, num_context, num_seqs, plan"),
    ("staged-offsets-v1", "B", RESOURCES, COPY_V1, "dst_tensor, request_ids, beam_width, num_context, num_seqs, /"),
    ("staged-offsets-v1", "A", ATTENTION, "TrtllmAttentionMetadata.prepare", "plan"),
    ("staged-offsets-v2", "D", V2, COPY_V2, "dst_tensor, request_ids, beam_width, *, num_contexts, num_seqs"),
    ("staged-offsets-v2", "D", V2, "KVCacheManagerV2._copy_batch_block_offsets_per_layer", "plan"),
    ("input-copy-fence", "B", ENGINE, "PyTorchModelEngine._prepare_inputs", "plan"),
    ("input-copy-fence", "B", LOOP, "PyExecutor._prepare_and_schedule_batch", "plan"),
    ("input-copy-fence", "B", LOOP, "PyExecutor._update_request_states", ""),
    ("input-copy-fence", "B", LOOP, "PyExecutor._process_previous_batch", "batch"),
]


@pytest.mark.parametrize(("fix_id", "variant", "module", "path", "parameters"), UNCALLABLE)
def test_what_cannot_be_called_as_upstream_calls_it_is_unknown(
    fix_id: str, variant: str, module: str, path: str, parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are there, and other arguments are asked for."""
    with standing_in(variant):
        changed = eval(f"lambda self, {parameters}: None" if parameters else "lambda self: None")
        monkeypatch.setattr(*owner_of(module, path), changed)
        answer = fix_of(fix_id).probe(Upstream())
        monkeypatch.undo()
    assert answer.state is State.UNKNOWN and "cannot be called" in answer.reason


def test_nothing_is_applied_to_a_build_whose_seams_nobody_knows() -> None:
    with standing_in("mangled"):
        registry = Registry(ALL)
        report = registry.apply(Settings(), Upstream(), at_last=True)
        registry.revert()
        words = {status.id: status.word for status in report.fixes if status.id != "nixl-listener"}
        assert set(words.values()) == {"unknown"} and report.applied == ()


def test_a_probe_that_raises_knows_nothing() -> None:
    def broken(_: Upstream) -> Answer:
        raise AttributeError("upstream moved it")

    fix = Fix(
        id="token-budget",
        hazard="H3",
        title="",
        upstream=(),
        triggers=(CREATOR,),
        probe=broken,
        replacements=lambda *_: [],
        self_test=lambda: None,
        expected={},
    )
    with standing_in("B"):
        registry = Registry([fix])
        assert registry.apply(Settings(), Upstream()).of(fix.id).word == "unknown"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_replacement_comes_off_again(variant: str) -> None:
    with all_imported(variant):
        registry = Registry(ALL)
        report = registry.apply(Settings(), Upstream(), at_last=True)
        assert set(report.applied) == {fix.id for fix in ALL if fix.expected[variant] is State.NEEDED}
        assert registry.report().displaced == {}
        assert registry.revert() == []
        for module in [module for name, module in sys.modules.items() if name.startswith("tensorrt_llm")]:
            marked = [name for name, value in vars(module).items() if hasattr(value, "__kvfix_fix__")]
            assert marked == []
