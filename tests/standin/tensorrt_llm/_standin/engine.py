"""A forward step: inputs go to the device, then attention reads them there (surface 5, 10)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .._torch.modules.decoder_layer import Model
from .._torch.pyexecutor.resource_manager import ResourceManagerType
from . import pauses
from .contents import Contents
from .witness import Witness


class Engine:
    metadata_class: Any

    def __init__(
        self,
        *,
        max_num_tokens: int,
        max_batch_size: int,
        beam_width: int = 1,
        chunked_prefill: bool = False,
        architecture: str = "dense",
        num_layers: int = 1,
    ) -> None:
        self.max_num_tokens = max_num_tokens
        self.batch_size = max_batch_size
        self.beam_width = beam_width
        self.model_config = SimpleNamespace(architecture=architecture)
        self.kv_cache_manager_key = ResourceManagerType.KV_CACHE_MANAGER
        self.is_draft_model = False
        self.attn_runtime_features = SimpleNamespace(chunked_prefill=chunked_prefill)
        self.attn_metadata: Any = None
        self.witness = Witness()
        self.model = Model(num_layers)
        self.contents: Contents | None = None  # kept where a connector may bring what this engine has not computed
        self.forward_pass_callable: Callable[[], None] | None = None

    def register_forward_pass_callable(self, called: Callable[[], None]) -> None:
        """A connector's, which is called on the stream of the step, behind all of its layers (surface 6.2)."""
        self.forward_pass_callable = called

    def _set_up_attn_metadata(self, kv_cache_manager: Any) -> Any:
        """Made once, and kept: its buffers have the addresses that CUDA graphs hold."""
        if self.attn_metadata is None:
            self.attn_metadata = self.metadata_class(
                max_num_sequences=self.batch_size * self.beam_width,
                kv_cache_manager=kv_cache_manager,
                beam_width=self.beam_width,
            )
        return self.attn_metadata

    def _set_up_forward(self, resource_manager: Any) -> tuple[Any, Any]:
        kv_cache_manager = resource_manager.get_resource_manager(self.kv_cache_manager_key)
        attn_metadata = self._set_up_attn_metadata(kv_cache_manager)
        pauses.reach(pauses.FORWARD_DRAFT if self.is_draft_model else pauses.FORWARD)
        return kv_cache_manager, attn_metadata

    def forward(self, scheduled_requests: Any, resource_manager: Any) -> dict[str, Any]:
        kv_cache_manager, attn_metadata = self._set_up_forward(resource_manager)
        inputs = self._prepare_inputs(scheduled_requests, kv_cache_manager, attn_metadata)
        return self._forward_step(inputs, attn_metadata)

    def _prepare_inputs(self, scheduled_requests: Any, kv_cache_manager: Any, attn_metadata: Any) -> dict[str, Any]:
        return self._prepare_tp_inputs(scheduled_requests, kv_cache_manager, attn_metadata)

    def _prepare_tp_inputs(self, scheduled_requests: Any, kv_cache_manager: Any, attn_metadata: Any) -> dict[str, Any]:
        del kv_cache_manager
        contexts, generations = scheduled_requests.context_requests, scheduled_requests.generation_requests
        total_num_tokens = sum(request.context_chunk_size for request in contexts)
        total_num_tokens += sum(self.beam_width * (1 + len(r.py_draft_tokens)) for r in generations)
        assert total_num_tokens <= self.max_num_tokens, (
            f"total_num_tokens ({total_num_tokens}) should be less than or equal to max_num_tokens "
            f"({self.max_num_tokens})"
        )
        attn_metadata.request_ids = [request.py_request_id for request in contexts + generations]
        attn_metadata.prompt_lens = [request.py_prompt_len for request in contexts + generations]
        attn_metadata.num_contexts = len(contexts)
        attn_metadata.prepare()
        return {"num_tokens": total_num_tokens, "attn_metadata": attn_metadata, "batch": scheduled_requests}

    def _forward_step(self, inputs: dict[str, Any], attn_metadata: Any) -> dict[str, Any]:
        self.witness.watch(attn_metadata)
        self._run_layers(inputs["batch"], attn_metadata.kv_cache_manager)
        if self.forward_pass_callable is not None:
            self.forward_pass_callable()
        return {"logits": inputs["num_tokens"]}

    def _run_layers(self, batch: Any, kv_cache_manager: Any) -> None:
        contents = self.contents
        if contents is None:
            self.model.forward(lambda _: None)
            return
        step = contents.begin(batch, kv_cache_manager)
        self.model.forward(lambda layer: contents.layer(step, layer))
        contents.end(step)
