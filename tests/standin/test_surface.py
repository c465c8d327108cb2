"""The stand-in has in each variant what the surface description says that upstream has, and nothing of later ones."""

import inspect
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server

TORCH = "tensorrt_llm._torch"
EXECUTOR = f"{TORCH}.pyexecutor"
BOUND = "tensorrt_llm.bindings.internal.batch_manager"


def has(module: str, dotted: str) -> bool:
    owner: Any = import_module(module)
    for name in dotted.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


# Surface 9, and 4.2 for what is bound: (module, attribute) and the variants that have it.
ATTRIBUTES = [
    (f"{EXECUTOR}.resource_manager", "KVCacheManager.copy_batch_block_offsets", "B B2 C D F"),
    (f"{EXECUTOR}.resource_manager", "KVCacheManager._stage_block_offsets_for_copy", "D F"),
    (f"{EXECUTOR}.resource_manager", "KVCacheManager.fit_token_budget", "D F"),
    (f"{EXECUTOR}.resource_manager", "KVCacheManager.kv_block_budget_applies", "D F"),
    (f"{EXECUTOR}.resource_manager", "KVCacheManager.report_batch_to_connector", "D F"),
    (f"{EXECUTOR}.resource_manager", "KVCacheManagerV2", "B"),
    (f"{EXECUTOR}.scheduler", "ScheduledRequests.reset_context_requests", "B2 C D F"),
    (f"{EXECUTOR}.model_engine", "PyTorchModelEngine.wait_for_input_copy", "D F"),
    (f"{EXECUTOR}.py_executor", "PyExecutor._wait_for_model_engine_input_copy", "D F"),
    (f"{EXECUTOR}.py_executor", "PyExecutor._pp_schedule_and_propagate", "C D F"),
    (f"{EXECUTOR}.py_executor", "PyExecutor.reset_prefix_cache", "B B2 C D F"),
    (BOUND, "BaseKVCacheManager.reset_reuse_state", "B B2 C D F"),
    (BOUND, "BaseKVCacheManager.add_sequence", "A B B2"),
    (BOUND, "BaseKVCacheManager.add_sequence_batch", "C D F"),
    (BOUND, "BaseKVCacheManager.refresh_blocks", "B B2 C D F"),
    (BOUND, "BaseKVCacheManager.sync_transfer_manager_with_buffer_manager", "B B2 C D F"),
    (BOUND, "BaseKVCacheManager.find_new_context_block", "B B2"),
    (BOUND, "BaseKVCacheManager.count_reusable_blocks", "B2"),
    (BOUND, "BaseKVCacheManager.analyze_prefix_reuse", "C D F"),
    (BOUND, "LlmRequest.get_unique_tokens", "B2 C D F"),
    (BOUND, "LlmRequest.estimated_reusable_tokens", "C D F"),
    (BOUND, "LlmRequest.set_prepopulated_prompt_len", "C D F"),
    (BOUND, "KVCacheManager.is_variable_window", "B B2 C D F"),
    (BOUND, "BaseKVCacheManager.pin_blocks_by_id", "C"),
    (BOUND, "BaseKVCacheManager.find_and_pin_blocks_by_hash", "C"),
    (BOUND, "BaseKVCacheManager.get_slot_idx_by_block_id", "C"),
]

MODULES = [
    (f"{EXECUTOR}.kv_cache_manager_v2", "B2 C"),
    (f"{EXECUTOR}.kv_cache.kv_cache_manager_v2", "D F"),
    (f"{EXECUTOR}.kv_cache_connector", "A B B2"),
    (f"{EXECUTOR}.connectors.kv_cache_connector", "C D F"),
    (f"{TORCH}.attention_backend.trtllm", "A B B2 C D"),
    (f"{TORCH}.attention.backends.trtllm", "F"),
    (f"{TORCH}.peft.lora.cuda_graph_lora_params", "D F"),
    (f"{BOUND}.kv_cache_manager_v2_utils", "B B2 C D F"),
    ("tensorrt_llm.runtime.kv_cache_manager_v2", "B B2 C D F"),
    ("tensorrt_llm.llmapi.rlhf_utils", "B B2 C D F"),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_attributes_are_where_the_variant_has_them(variant: str) -> None:
    with upstream(variant):
        found = {dotted: has(module, dotted) for module, dotted, _ in ATTRIBUTES}
    assert found == {dotted: variant in variants.split() for _, dotted, variants in ATTRIBUTES}


@pytest.mark.parametrize("variant", VARIANTS)
def test_modules_are_where_the_variant_has_them(variant: str) -> None:
    def exists(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    with upstream(variant):
        found = {module: exists(module) for module, _ in MODULES}
    assert found == {module: variant in variants.split() for module, variants in MODULES}


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("B", ["dst_tensor", "request_ids", "beam_width", "num_context", "num_seqs"]),
        ("C", ["dst_tensor", "request_ids", "beam_width", "num_context", "num_seqs"]),
        ("D", ["dst_tensor", "request_ids", "beam_width", "num_context", "num_seqs", "max_blocks"]),
    ],
)
def test_v1_copy_takes_what_it_takes_upstream(variant: str, expected: list[str]) -> None:
    with upstream(variant):
        copy = import_module(f"{EXECUTOR}.resource_manager").KVCacheManager.copy_batch_block_offsets
        assert list(inspect.signature(copy).parameters)[1:] == expected


@pytest.mark.parametrize(("variant", "arity"), [("B", 5), ("B2", 6), ("C", 6), ("D", 6), ("F", 6), ("mangled", 3)])
def test_the_kernel_tells_its_arguments_in_its_docstring_alone(variant: str, arity: int) -> None:
    with upstream(variant):
        kernel = import_module(f"{BOUND}.kv_cache_manager_v2_utils").copy_batch_block_offsets_to_device
        assert kernel.__doc__.count(": ") == arity
        with pytest.raises(ValueError, match="no signature found"):
            inspect.signature(kernel)


@pytest.mark.parametrize(("variant", "count"), [("A", 1), ("B", 2), ("B2", 4), ("C", 4), ("D", 4), ("F", 4)])
def test_the_point_of_choice_was_widened(variant: str, count: int) -> None:
    with upstream(variant):
        choose = import_module(f"{EXECUTOR}._util").get_kv_cache_manager_cls
        assert len(inspect.signature(choose).parameters) == count


@pytest.mark.parametrize("variant", VARIANTS)
def test_importing_it_loads_no_native_code(variant: str) -> None:
    loaded = {name for name in sys.modules if name.startswith("trtllm_kvfix")}
    with upstream(variant):
        assert {name for name in sys.modules if name.startswith("trtllm_kvfix")} == loaded


def test_nothing_of_it_stays_behind() -> None:
    path, finders = list(sys.path), list(sys.meta_path)
    with upstream("F", nixl=True):
        import_module(f"{EXECUTOR}.py_executor_creator")
    assert sys.path == path
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.startswith("tensorrt_llm")]


def test_only_one_at_a_time() -> None:
    with upstream("A"), pytest.raises(RuntimeError, match="one at a time"), upstream("B"):
        pass


def test_block_budgets_apply_to_the_exact_class_only() -> None:
    """The trap for whoever puts a subclass in its place (surface 1.5)."""
    with upstream("D"):
        plain, hybrid = Server(), Server({"architecture": "hybrid"})
        assert plain.manager.kv_block_budget_applies()
        assert not hybrid.manager.kv_block_budget_applies()
        plain.close()
        hybrid.close()
