"""The engine of the PyTorch backend, with upstream's fence where it has one (surface 2.4)."""

from typing import Any

from ..._standin import pauses
from ..._standin.engine import Engine
from ..._standin.tensors import tensors
from ..._standin.variant import MANGLED, since

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
        return self._prepare_tp_inputs(scheduled_requests, kv_cache_manager, attn_metadata)

    if since("D") or MANGLED:  # half of the fence, in a mangled build
        _prepare_inputs_event: Any = None

        def forward(self, scheduled_requests: Any, resource_manager: Any) -> dict[str, Any]:
            kv_cache_manager, attn_metadata = self._set_up_forward(resource_manager)
            inputs = self._prepare_inputs(scheduled_requests, kv_cache_manager, attn_metadata)
            self._prepare_inputs_event = tensors().event()
            self._prepare_inputs_event.record()
            return self._forward_step(inputs, attn_metadata)

        def wait_for_input_copy(self) -> None:
            """The host buffers of the last step may be written again (#14128)."""
            if self._prepare_inputs_event is not None:
                pauses.reach(pauses.WAIT_FOR_INPUT_COPY)
                self._prepare_inputs_event.synchronize()
