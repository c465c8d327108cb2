"""Host tables that a CUDA graph reads when it is replayed (H9)."""

from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

from trtllm_kvfix.hazards.build import played_behind_a_held_stream, unmade
from trtllm_kvfix.hazards.case import Comparison, Played
from trtllm_kvfix.hazards.ground import Ground, NothingToShow, Unavailable
from trtllm_kvfix.hazards.small import accepted
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import GRAPH_RUNNER, LORA_PARAMS, Upstream

TABLES, RUNNER = "CudaGraphLoraParams", "CUDAGraphRunner"
LAYER, MODULE, SLOTS, BATCH = 0, 13, 2, 2


class Adapter(NamedTuple):
    """One module of one layer, as the cache of adapters has it. The weights do not exist, and nothing reads them."""

    adapter_size: int
    weights_in_pointer: int = 64
    weights_out_pointer: int = 128
    layer_id: int = LAYER
    module_id: int = MODULE


def keeps_its_tables(ground: Ground, up: Upstream) -> str | None:
    """The stream is held in front of a replay, and the next batch has another adapter: which does the graph read?"""
    if not up.has(LORA_PARAMS, f"{TABLES}.get_moe_slot_inputs") or not up.has(GRAPH_RUNNER, RUNNER):
        raise NothingToShow("no CUDA graph reads host tables of LoRA")
    return _Experts(ground, up).survive()


class _Experts(Played):
    """A layer that copies its tables inside the graph, as the backend of upstream's experts does.

    Two batches have an adapter each, of rank 1 in slot 0 and of rank 2 in slot 1.
    """

    def __init__(self, ground: Ground, up: Upstream) -> None:
        self._ground, self._stream = ground, ground.stream()
        with ground.on(self._stream):
            self._params = lora_tables(up.attribute(LORA_PARAMS, TABLES))
            self._runner, self._key = _runner(ground, up), _key(up)
            self._slots, self._ranks = ground.on_device((BATCH,)), ground.on_device((SLOTS,))
            self._seen = ground.pinned((BATCH,)), ground.pinned((SLOTS,))
            self._inputs = {
                "attn_metadata": SimpleNamespace(),
                "input_ids": ground.on_device((BATCH,)),
                "position_ids": ground.on_device((1, BATCH)),
                "lora_params": {"cuda_graph_params": self._params},
            }
            self._write(0)
            self._capture()
        self._stream.synchronize()

    def survive(self) -> str | None:
        own, arrived = played_behind_a_held_stream(self, self._ground, self._stream)
        if arrived == own:
            return None
        return "a graph read slots {} and ranks {} of the next batch, not {} and {}".format(*arrived, *own)

    def call(self) -> None:
        with self._ground.on(self._stream):
            self._write(0)
            self._runner.replay(self._key, current_inputs=self._inputs)
            for seen, read in zip(self._seen, (self._slots, self._ranks), strict=True):
                seen.copy_(read, non_blocking=True)

    def disturb(self) -> None:
        with self._ground.on(self._stream):
            self._write(1)

    def settle(self) -> None:
        self._stream.synchronize()

    def compare(self) -> Comparison:
        return Comparison([[0] * BATCH, [1, 0]], [seen.numpy().tolist() for seen in self._seen])

    def _write(self, slot: int) -> None:
        """Writes a batch's tables as `LoraParamBuilder` has them written."""
        self._params.update_sorted_indices([slot] * BATCH, tokens_per_seq=1)
        tasks = tuple(slot if slot == each else None for each in range(SLOTS))
        self._params.update_weight_pointers({slot: [Adapter(1 + slot)]}, tasks)

    def _capture(self) -> None:
        try:
            self._runner.capture(self._key, self._forward, self._inputs, enable_spec_decode=False, postprocess_fn=None)
        except (AttributeError, TypeError) as error:
            raise Unavailable(f"{RUNNER} cannot capture a graph without a model: {error}") from error

    def _forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
        params = inputs["lora_params"]["cuda_graph_params"]
        ranks, _ = params.get_moe_slot_inputs(LAYER, MODULE)
        if not ranks.is_pinned():  # as on machines with confidential computing
            raise Unavailable("the tables of LoRA are not pinned here, and a graph cannot read them")
        self._ground.read(self._slots, params.token_to_slot_host)
        self._ground.read(self._ranks, ranks)
        return {"ranks": self._ranks}


def lora_tables(kind: Any) -> Any:
    """Those of one module of one layer."""
    layer = kind.LoraLayerInfo(module_num=1, output_sizes=[8], input_hidden_size=8)
    key = kind.LoraLayerKey(layer_idx=LAYER, module_ids=(MODULE,))
    options = {"max_batch_size": BATCH, "max_lora_size": SLOTS, "max_rank": 8, "layer_info": {key: layer}}
    return kind(**accepted(kind, options))


def _runner(ground: Ground, up: Upstream) -> Any:
    """With all that a capture reads."""
    return unmade(
        up.attribute(GRAPH_RUNNER, RUNNER),
        config=SimpleNamespace(use_mrope=False, is_draft_model=False, spec_config=None),
        shared_static_tensors={
            "input_ids": ground.on_device((BATCH,)),
            "position_ids": ground.on_device((1, BATCH)),
        },
        graphs={},
        graph_outputs={},
        graph_metadata={},
        spec_config=None,
        max_beam_width=1,
        memory_pool=None,
        is_warmup_only=False,
    )


def _key(up: Upstream) -> tuple[Any, ...]:
    """The key of a graph for generations: batch size, draft length, whether they are the first drafts. Fields that
    later builds append have a default, or are spelled out as a tuple of types."""
    fields = get_args(up.attribute(GRAPH_RUNNER, "KeyType"))
    nothing: dict[Any, Any] = {int: 0, bool: False}
    return (BATCH, *(nothing.get(each, ()) for each in fields[1:] or (int, bool)))


SCENARIOS = (Scenario("graph-tables", "graph-inputs", keeps_its_tables),)
