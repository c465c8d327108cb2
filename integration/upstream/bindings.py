"""`tensorrt_llm.bindings` of one era, out of `kvfix_bound`; what the extension does not declare is added by name."""

from types import ModuleType
from typing import Any

from integration.upstream.doubles import DoubledModule
from integration.upstream.provided import PACKAGE, bound_module

BATCH_MANAGER = f"{PACKAGE}.bindings.internal.batch_manager"


def request_class(era: Any) -> Any:
    """The bound request, with what upstream's Python calls on it and the extension lacks."""

    class LlmRequest(era.LlmRequest):  # type: ignore[misc]
        return_perf_metrics = False
        is_finished_due_to_cancellation = False
        # Later eras than the request's excerpt read these.
        kv_cache_retention_config = cache_salt = encoder_output_len = None
        py_disaggregated_params = py_mm_encoder_state = py_multimodal_data = None
        py_per_pos_drafted = py_per_pos_accepted = None
        py_total_draft_tokens = py_total_accepted_draft_tokens = py_num_draft_tokens_verified = 0
        py_num_connector_matched_tokens = 0
        py_disable_speculative_decoding = False

        @property
        def sampling_config(self) -> Any:
            found = super().sampling_config
            found.min_length = None
            return found

        def create_serialized_result(self, *_: Any) -> tuple[bytes, bool]:
            return b"tokens", self.is_finished

        def set_exclude_last_generation_logits(self, _: bool) -> None:
            pass

        def will_complete_next_iteration(self) -> bool:
            return bool(self.max_beam_num_tokens - self.prompt_len + 1 >= self.max_new_tokens)

    return LlmRequest


def manager_class(era: Any) -> Any:
    """The bound manager. Some of upstream's managers name one head size, where S's binding wants a list."""

    class KVCacheManager(era.KVCacheManager):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            try:
                super().__init__(**given)
            except TypeError:
                size = given.pop("size_per_head")
                super().__init__(**given, size_per_head_per_layer=[size] * len(given["num_kv_heads_per_layer"]))

        if era.__name__.endswith(".A"):
            # Attention metadata that ships the table itself is older than the binding: it passes neither of the last.
            def copy_batch_block_offsets(self, table: Any, ids: Any, beams: int = 1, offset: int = 0) -> None:
                super().copy_batch_block_offsets(table, ids, beams, offset)

    return KVCacheManager


class ReqIdsSet(set[int]):
    """The bound set of ids."""

    insert = set.add
    erase = set.discard


def binding_modules(era_name: str) -> dict[str, ModuleType]:
    # The newest managers speak to a binding that nobody has read; D stands in for it.
    era = getattr(bound_module(), "D" if era_name in ("N", "O") else era_name)
    batch = DoubledModule(BATCH_MANAGER)
    names = {name: getattr(era, name) for name in dir(era) if not name.startswith("_")}
    vars(batch).update(names | {"ReqIdsSet": ReqIdsSet, "LlmRequest": request_class(era)})
    vars(batch)["KVCacheManager"] = manager_class(era)
    top = DoubledModule(f"{PACKAGE}.bindings")
    internal = DoubledModule(f"{PACKAGE}.bindings.internal")
    executor = DoubledModule(f"{PACKAGE}.bindings.executor")
    algorithms = DoubledModule(f"{PACKAGE}.bindings.internal.algorithms")
    for name in ("DataType", "LlmRequestState", "SamplingConfig"):
        setattr(top, name, getattr(era, name))
    for name in ("CapacityScheduler", "MicroBatchScheduler"):
        if hasattr(era, name):
            setattr(algorithms, name, getattr(era, name))
    vars(executor)["FinishReason"] = era.FinishReason
    vars(top).update(internal=internal, executor=executor)
    vars(internal).update(batch_manager=batch, algorithms=algorithms)
    utils = DoubledModule(f"{BATCH_MANAGER}.kv_cache_manager_v2_utils")
    for name in ("IndexMapper", "copy_batch_block_offsets_to_device"):
        if hasattr(era, name):
            setattr(utils, name, getattr(era, name))
    return {each.__name__: each for each in (top, internal, executor, algorithms, batch, utils)}
