"""The engine of the PyTorch backend, with upstream's fence where it has one (surface 2.4)."""

from typing import Any

from ..._standin import pauses
from ..._standin.engine import Engine
from ..._standin.tensors import tensors
from ..._standin.variant import MANGLED, since
from .cuda_graph_runner import CUDAGraphRunner

if since("D") or MANGLED:
    from ..._standin.lora import CudaGraphLoraManager, Experts
if since("F"):
    from ..attention.backends.trtllm import TrtllmAttentionMetadata
else:
    from ..attention_backend.trtllm import TrtllmAttentionMetadata  # type: ignore[assignment]  # by variant


class PyTorchModelEngine(Engine):
    metadata_class = TrtllmAttentionMetadata

    def _prepare_inputs(self, scheduled_requests: Any, kv_cache_manager: Any, attn_metadata: Any) -> dict[str, Any]:
        if since("D") and not self.is_draft_model:
            # Only where no drafts are about: they may need blocks that are not there yet (surface 1.6).
            ids = [request.py_request_id for request in scheduled_requests.all_requests()]
            attn_metadata.max_blocks = max(map(len, kv_cache_manager.get_batch_cache_indices(ids)))
        inputs = self._prepare_tp_inputs(scheduled_requests, kv_cache_manager, attn_metadata)
        lora_params = self._get_lora_params_from_requests(scheduled_requests)
        if lora_params is not None:
            inputs["lora_params"] = lora_params
        return inputs

    cuda_graph_lora_manager: Any = None

    def init_cuda_graph_lora_manager(self, lora_config: Any) -> None:
        sizes = lora_config.max_loras, self.batch_size
        self.cuda_graph_lora_manager = CudaGraphLoraManager(*sizes)
        self.experts = Experts(*sizes)
        self.cuda_graph_runner = CUDAGraphRunner()

    def _get_lora_params_from_requests(self, scheduled_requests: Any) -> dict[str, Any] | None:
        """Parameters for a batch that runs as a graph: all of it generates, with an adapter each."""
        tasks = [request.lora_task_id for request in scheduled_requests.generation_requests]
        if self.cuda_graph_lora_manager is None or scheduled_requests.context_requests or None in tasks:
            return None
        prepared: dict[str, Any] = self.cuda_graph_lora_manager.prepare_cuda_graph_lora_params(tasks)
        return prepared

    def _replay_experts(self, inputs: dict[str, Any], attn_metadata: Any) -> None:
        runner, key = self.cuda_graph_runner, "all batch sizes"
        if runner.needs_capture(key):
            runner.capture(key, lambda given: self.experts.forward(given["lora_params"]), inputs)
        runner.replay(key, inputs)
        self.experts.watch(self.witness, attn_metadata.request_ids, inputs["lora_params"])

    if since("D") or MANGLED:  # half of the fence, in a mangled build
        _prepare_inputs_event: Any = None

        def forward(self, scheduled_requests: Any, resource_manager: Any) -> dict[str, Any]:
            kv_cache_manager, attn_metadata = self._set_up_forward(resource_manager)
            inputs = self._prepare_inputs(scheduled_requests, kv_cache_manager, attn_metadata)
            self._prepare_inputs_event = tensors().event()
            self._prepare_inputs_event.record()
            if "lora_params" in inputs:
                self._replay_experts(inputs, attn_metadata)
            return self._forward_step(inputs, attn_metadata)

        def wait_for_input_copy(self) -> None:
            """The host buffers of the last step may be written again (#14128)."""
            if self._prepare_inputs_event is not None:
                pauses.reach(pauses.WAIT_FOR_INPUT_COPY)
                self._prepare_inputs_event.synchronize()
