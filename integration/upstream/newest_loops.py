"""The loops of upstream's newest executor that is stored (era O), over the stand-in's managers, engine and requests.

The methods are upstream's own, out of the excerpts that KVFIX_UPSTREAM names. What they call besides is the stand-in's,
or does nothing: disaggregation, statistics, encoders, drafters, other ranks.
"""

import __future__

import ast
import linecache
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import mock

from integration.upstream.assemble import module_text, slices, sources
from integration.upstream.doubles import Idle, does_nothing
from tests.standin.serving import PYEXECUTOR
from tests.torture.v2_attack import Attack

PATH = "tensorrt_llm/_torch/pyexecutor/py_executor.py"
ERA = "O"
LOOPS = ("_executor_loop", "_executor_loop_overlap", "_prepare_and_schedule_batch")
# What runs of upstream's. The rest of the executor is the stand-in's, also where the excerpts have upstream's.
RUN = (
    *LOOPS, "_release_unused_connector_reservations", "_kv_connector_start_batch",
    "_defer_connector_load_cancellations", "_kv_connector_terminate_requests", "_finish_connector_load_termination",
    "_kv_connector_wait_for_save", "_can_pause_for_rebalance", "_consume_previous_batch_for_rebalance",
    "_maybe_rebalance_kv_pools", "_rebalance_kv_pools_now", "_suspend_padding_dummies_for_rebalance",
    "_resume_padding_dummies_after_rebalance", "control_action", "_wait_for_model_engine_input_copy",
    "_spec_sampler_on_execution_stream", "_spec_sampler_stream_scope", "_process_previous_batch",
    "_pause_recompute_request", "_terminate_recompute_paused_requests", "_pause_recompute_paused_requests",
    "_terminate_request", "_try_cancel_request", "_handle_canceled_requests",
)  # fmt: skip


def source_in(folder: Path | None, path: str = PATH, era: str = ERA) -> str:
    """Nothing where the folder has no excerpts of it."""
    found = [each for each in sources(folder) if each.path == path and era in each.eras] if folder else []
    return module_text(slices(found[0])) if found else ""


@contextmanager
def newest_loops(source: str) -> Iterator[None]:
    """Inside the stand-in, before an executor is made."""
    executor = import_module(f"{PYEXECUTOR}.py_executor").PyExecutor
    theirs = methods(source, PATH, _globals(), RUN)
    assert set(LOOPS) <= theirs.keys(), f"the excerpts lack {set(LOOPS) - theirs.keys()}"
    with ExitStack() as stack:
        for owner, names in [(executor, theirs), (executor, _beside(executor)), *_requests()]:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


def let_it_rebalance(attack: Attack) -> None:
    """The manager says when, and upstream's loop does it: never where a connector has something under way."""
    manager = type(attack.manager.impl)
    manager.need_adjustment = property(lambda self: self.wants_adjustment and not attack.is_loading)
    attack.manager.impl.wants_adjustment = False

    def adjust() -> None:
        attack.manager.impl.wants_adjustment = False
        attack.adjust()

    attack.manager.impl.adjust = adjust
    attack.rebalance = lambda: setattr(attack.manager.impl, "wants_adjustment", True)


def methods(source: str, path: str, names: dict[str, Any], wanted: Sequence[str]) -> dict[str, FunctionType]:
    """Those of the last class in it; nothing else in it runs. Their source can be read, as a probe does."""
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    kind = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)][-1]
    kept: list[ast.stmt] = [each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name in wanted]
    made: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), path, "exec", __future__.annotations.compiler_flag), names, made)
    return made


def _globals() -> dict[str, Any]:
    tensors = import_module("tensorrt_llm._standin.tensors").tensors()
    request, sampler = import_module(f"{PYEXECUTOR}.llm_request"), import_module(f"{PYEXECUTOR}.sampler")
    trims = import_module("tensorrt_llm._standin.variant").STEP_PROLOGUE_TRIM
    cuda = SimpleNamespace(set_device=does_nothing, current_stream=tensors.current_stream, stream=tensors.on)
    return {
        "torch": SimpleNamespace(cuda=cuda),
        "cudart": SimpleNamespace(cudaSetDevice=does_nothing),
        "CUASSERT": does_nothing,
        "BatchState": SimpleNamespace,
        "LlmRequestState": request.LlmRequestState,
        "FinishReason": request.FinishReason,
        "OutOfPagesError": type("OutOfPagesError", (Exception,), {}),
        "ResourceManagerType": SimpleNamespace(SPEC_RESOURCE_MANAGER=None),
        "SpecSampler": sampler.TorchSampler,
        "_UNBOUNDED_PAUSE_MAX_INPUT_LEN": 1 << 30,
        "contextmanager": contextmanager,
        "logger": logging.getLogger("tensorrt_llm"),
        "nullcontext": nullcontext,
        "nvtx_range": lambda _: lambda method: method,
        "step_prologue_trim_enabled": lambda: trims,
        "time": time,
    }


class Timing(Idle):
    def create_timing_events(self) -> tuple[None, None, None]:
        return None, None, None

    def record_perf_events(self, *_: Any) -> Any:
        return nullcontext()


class Watchdog(Idle):
    def __enter__(self) -> "Watchdog":
        return self

    def __exit__(self, *_: object) -> None:
        """It watches nothing."""


DOES_NOTHING = """
    _add_kv_cache_events _commit_kv_cache_stats _finalize_adp_dummy_allocation _flush_iter_stats_synced
    _enqueue_responses _flush_pending_transfer_responses _handle_control_request _handle_dynamic_draft_len
    _handle_guided_decoder_errors _maybe_prefetch_next_iter_mm_encoders _maybe_record_hang_diagnostic_phase
    _pad_attention_dp_dummy_request _pad_empty_attention_dp_batch _poll_encoder_steps _prefetch_for_context_requests
    _prepare_disagg_gen_transmission_complete _update_generation_requests_that_will_complete_next_iteration
"""
IS_OFF = """
    enable_early_first_token_response enable_iter_perf_stats enable_kv_cache_events has_previous_draft_tokens
    is_benchmark_disagg is_warmup use_spec_decode _mm_encoder_item_scheduling_enabled _resource_governor_enabled
"""
IS_NOT_THERE = (
    "drafter dwdp_manager guided_decoder kv_cache_transceiver speculation_gate _disagg_pp_termination_handler"
)


def _beside(executor: Any) -> dict[str, Any]:
    """What the loops call and the excerpts lack. Ours, over what the stand-in has of it."""
    forward, respond, can_queue = executor._forward_step, executor._handle_responses, executor._can_queue

    def fetch(self: Any) -> list[Any]:
        """Upstream's applies with the requests which loads are over."""
        if self.kv_connector_manager is not None:
            self.kv_connector_manager.finish_prefix_loads(self.kv_connector_manager.take_finished_prefix_loads())
        idle = not self.active_requests and self.previous_batch is None
        self._fetch_new_requests(idle=idle and not self.async_transfer_manager.requests_in_transfer())
        return []

    def stops(self: Any) -> bool:
        if not self.is_shutdown or self.active_requests or self.previous_batch is not None:
            return False
        return self.kv_connector_manager is None or not self.kv_connector_manager.has_pending_loads()

    def take_back(_: Any, batch: Any) -> None:
        assert not batch.generation_requests, "a batch that cannot be queued has what was allocated for it"

    return {
        **dict.fromkeys(DOES_NOTHING.split(), does_nothing),
        **dict.fromkeys(IS_OFF.split(), False),
        **dict.fromkeys(IS_NOT_THERE.split()),
        "device_id": 0,
        "disagg": Idle(),
        "dist": SimpleNamespace(rank=0),
        "enable_kv_pool_rebalance": True,
        "hang_detector": Watchdog(),
        "iter_counter": 0,
        "max_total_draft_tokens": 0,
        "perf_manager": Timing(),
        "should_stop_processing": property(stops),
        "waiting_queue": Idle(),
        "_agreed_need_adjustment": lambda self: self.kv_cache_manager.impl.need_adjustment,
        "_can_queue": lambda self, batch: (can_queue(self, batch),) * 2,
        "_check_benchmark_disagg_gate": lambda *given: (given[-1], False),
        "_fetch_and_activate_new_requests": fetch,
        "_forward_step": lambda self, batch, *_: forward(self, batch),
        "_free_request_resources": lambda self, request: self._terminate_request(request),
        "_handle_responses": lambda self, **_: respond(self),
        "_is_kv_manager_v2": True,
        "_pending_recompute_pause_ids": frozenset(),
        "_profiler": lambda _: nullcontext(does_nothing),
        "_rebalance_check_interval": 1,
        "_revert_gen_alloc": take_back,
        "_sample_on_execution_stream": property(
            lambda self: self._spec_sampler_on_execution_stream(self.sampler, self.drafter, self.guided_decoder)
        ),
        "_step_scope": lambda *_, **__: nullcontext(),
        "_update_v2_context_resources": executor._update_context_resources,
    }


def _requests() -> list[tuple[Any, dict[str, Any]]]:
    """What requests, batches and samples of the newest executor have besides."""
    request = import_module(f"{PYEXECUTOR}.llm_request").LlmRequest
    batch = import_module(f"{PYEXECUTOR}.scheduler").ScheduledRequests
    sample = import_module(f"{PYEXECUTOR}.sampler").SampleState
    engine = import_module(f"{PYEXECUTOR}.model_engine").PyTorchModelEngine
    return [
        (request, {"is_attention_dp_dummy": False, "is_child": False, "py_batch_idx": None, "py_decoding_iter": 0}),
        (request, {"create_response": does_nothing, "kv_cache_retention_config": None}),
        (request, {"reset_for_recompute": request.pause}),
        (batch, {"encoder_requests": (), "num_encoder_requests": 0, "scheduled_mm_encoder_items": ()}),
        (batch, {"recompute_paused_requests": property(lambda self: self.paused_requests)}),
        (sample, {"device": None}),
        (engine, {"is_spec_decode": False}),
    ]
