"""Upstream's own model engine prepares the inputs, on the late device; the model reads them there and computes nothing.

`forward`, `_prepare_inputs`, `_prepare_tp_inputs` and the runner of CUDA graphs are the tree's. Ours are the buffers
that its constructor would make, the model, and the methods of `Fallback`, which no excerpt holds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import graphs
from integration.upstream.engine import FIRST_GENERATED, Sampler
from integration.upstream.judging import Judge, Model
from integration.upstream.provided import Mapping


class Fallback:
    """The engine's methods call these on themselves, and no excerpt holds them."""

    def _can_use_incremental_update(self, *_: Any) -> bool:
        return False

    def _get_lora_params_from_requests(self, *_: Any, **__: Any) -> None:
        return None

    def _get_all_rank_num_tokens(self, _: Any) -> None:
        return None

    def _get_padding_params(self, total: int, _: int, ranks: Any) -> tuple[int, bool, Any]:
        return total, False, ranks

    def _set_up_attn_metadata(self: Any, *_: Any) -> Any:
        return self.attn_metadata

    def _set_up_spec_metadata(self: Any, *_: Any, **__: Any) -> Any:
        return self.spec_metadata

    def _preprocess_inputs(self, inputs: Any) -> Any:
        return inputs

    def _postprocess_inputs(self, inputs: Any) -> Any:
        return inputs

    def _execute_logit_post_processors(self, *_: Any) -> None:
        pass

    def warmup(self, _: Any) -> None:
        pass

    # Attributes of later engines.

    moe_load_balancer = breakable_cuda_graph_runner = _prepare_inputs_event = None
    _is_encode_only = _model_uses_ple_recurrent_state = _trtllm_gen_jit_warmup = False

    def _get_draft_kv_cache_manager(self, _: Any) -> None:
        return None

    def _is_encoder_decoder_model(self) -> bool:
        return False

    def _use_lora_cuda_graph(self, _: Any) -> bool:
        return False


class NoGraphs:
    """A runner of CUDA graphs that is off, where the excerpt holds little more than capture and replay."""

    enabled = is_warmup_only = False
    padding_dummy_request = None

    @contextmanager
    def pad_batch(self, batch: Any, *_: Any) -> Iterator[Any]:
        yield batch

    def maybe_get_cuda_graph(self, *_: Any, **__: Any) -> tuple[None, None, None]:
        return None, None, None

    def get_graph_pool(self) -> None:
        return None


class Grafted:
    """An adapter between a later `forward` and an earlier `_prepare_tp_inputs`, which takes the first nine
    arguments."""

    def _prepare_inputs(self: Any, *given: Any, **_: Any) -> Any:
        return self._prepare_tp_inputs(*given[:9])


class SpecMetadata:
    """Speculation by one model. The inputs of its layers are written here, and nobody reads them."""

    def __init__(self) -> None:
        self.spec_dec_mode = SimpleNamespace(
            attention_need_spec_dec_mode=lambda *_: False,
            support_overlap_scheduler=lambda: True,
            extend_ctx=lambda _: False,
            needs_kv_cache_recompute=lambda: False,
        )
        self.is_linear_tree = True
        self.is_spec_dec_tree = self.is_spec_dec_dynamic_tree = False
        self.decoding_type = "MTP"

    def prepare(self) -> None:
        pass

    def create_cuda_graph_metadata(self, _: int) -> "SpecMetadata":
        return SpecMetadata()


def engine_class(tree_class: Any, older_class: Any = None) -> Any:
    """The tree's engine; what it lacks comes behind it, from an older engine where one is named, else from us."""
    bases = (tree_class, Fallback) if older_class is None else (tree_class, Grafted, older_class, Fallback)
    behind = type(tree_class.__name__, bases, {})

    class ModelEngine(behind):  # type: ignore[misc, valid-type]
        def __init__(self, judge: Judge, metadata: Any, shape: Any, key: Any) -> None:
            self.judge, self.attn_metadata, self.kv_cache_manager_key = judge, metadata, key
            self.__dict__ |= {name: value for name, value in vars(judge).items() if name not in self.__dict__}
            self.mapping, self.dist, self.model = Mapping(), None, Model()
            self.is_spec_decode = self.enable_spec_decode = shape.speculates
            self.spec_metadata = self.spec_config = SpecMetadata() if shape.speculates else None
            self.runtime_draft_len = self.original_max_draft_len = shape.draft_len
            self.original_max_total_draft_tokens = shape.draft_len
            self._disable_overlap_scheduler = not shape.overlap
            self.max_beam_width = shape.beams
            for name in _OFF:
                setattr(self, name, None)
            self._allocate(shape)

        def _allocate(self, shape: Any) -> None:
            tokens, rows = shape.budget + shape.max_batch_size, shape.max_batch_size
            sizes = {
                **dict.fromkeys(
                    ("input_ids_cuda", "position_ids_cuda", "draft_tokens_cuda", "gather_ids_cuda"), tokens
                ),
                **dict.fromkeys(("previous_pos_indices_cuda", "previous_pos_id_offsets_cuda"), tokens),
                **dict.fromkeys(("previous_batch_indices_cuda", "previous_kv_lens_offsets_cuda"), rows),
                "num_accepted_draft_tokens_cuda": rows,
            }
            for name, size in sizes.items():
                setattr(self, name, torch.zeros(size, dtype=torch.int, device="cuda"))

        def forward(self, scheduled: Any, resources: Any, *given: Any, **named: Any) -> dict[str, Any]:
            if self.is_warmup:
                return dict(super().forward(scheduled, resources, *given, **named))
            steps = self.judge.steps(scheduled)
            replays = len(graphs.replayed)
            outputs = super().forward(scheduled, resources, *given, **named)
            in_graph = len(graphs.replayed) > replays
            padding = outputs["rows"] - len(steps) if in_graph else 0
            dummies = [self.cuda_graph_runner.padding_dummy_request] * padding
            batch = self.judge.launched(scheduled, steps, outputs["read"], dummies=dummies, in_graph=in_graph)
            return {"logits": None, "batch": batch}

        def get_max_num_sequences(self) -> int:
            return self.judge.get_max_num_sequences()

    return ModelEngine


# From the constructor: features that are not in use.
_OFF = (
    "guided_decoder",
    "is_draft_model",
    "use_mrope",
    "use_beam_search",
    "attn_backend",
    "cache_indirection_attention",
    "forward_pass_callable",
    "without_logits",
    "_torch_compile_backend",
    "model_is_wrapped",
    "moe_load_balancer",
    "spec_tree_manager",
)


class InputSampler(Sampler):
    """Leaves the tokens on the device, where the next step takes them from."""

    def __init__(self, *given: Any, shape: Any, plain: Any, drafted: Any) -> None:
        super().__init__(*given)
        self._drafts, self._speculates = shape.draft_len, shape.speculates
        rows = shape.max_batch_size
        self._tokens = torch.zeros(1 + self._drafts, rows, shape.beams, dtype=torch.int, device="cuda")
        self._lens = torch.ones(rows, dtype=torch.int, device="cuda")
        self._next = torch.zeros(rows, self._drafts, dtype=torch.int, device="cuda")
        self._plain, self._drafted = plain, drafted

    def sample_async(self, scheduled: Any, outputs: dict[str, Any], prefix: Any = None) -> Any:
        real = {step.request_id: step for step in outputs["batch"].steps}
        state = super().sample_async(scheduled, outputs, prefix)
        state.sampled = [each for each in state.sampled if each.py_request_id in real]
        state.drafting = [each for each in scheduled.generation_requests if each in state.sampled]
        for request in state.sampled:
            token = torch.tensor([FIRST_GENERATED + real[request.py_request_id].end], dtype=torch.int, pin_memory=True)
            self._tokens[0, request.py_seq_slot].copy_(token, non_blocking=True)
        state.device = self._plain(new_tokens=self._tokens)
        if self._speculates:
            state.device = self._drafted(
                new_tokens=self._tokens, new_tokens_lens=self._lens, next_draft_tokens=self._next
            )
        event = torch.cuda.Event()
        event.record()
        state.sampler_event.cuda_event = event
        return state

    def update_requests(self, state: Any, resources: Any = None) -> None:
        super().update_requests(state, resources)
        for request in state.drafting:
            request.py_rewind_len = len(request.py_draft_tokens or [])  # no draft is ever accepted


class Slots:
    """Upstream's manager of sequence slots, as far as it goes: a slot with the first chunk, until the end."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))

    def prepare_resources(self, scheduled: Any) -> None:
        for request in scheduled.all_requests():
            if request.py_seq_slot is None:
                request.py_seq_slot = request.seq_slot = self._free.pop(0)

    def free_resources(self, request: Any) -> None:
        if request.py_seq_slot is not None and not request.is_dummy:
            self._free.append(request.py_seq_slot)
            request.py_seq_slot = request.seq_slot = None

    def update_resources(self, *_: Any) -> None:
        pass

    def get_max_resource_count(self) -> int:
        return len(self._free)
