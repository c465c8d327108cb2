"""LoRA tables of experts, which a CUDA graph reads at each replay: upstream's own writers, capture and replay.

Replays are enqueued and not awaited, as in the loop of an executor whose tables change from batch to batch.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from integration.upstream import cuda, graphs, late
from integration.upstream.arrivals import Arrival
from integration.upstream.fallbacks import of_the_tree
from integration.upstream.loading import EXECUTOR, LORA_PARAMS
from integration.upstream.server import Outcome, Server

LAYER, MODULE, SLOTS, BATCH = 0, 13, 2, 2


class GraphKey(NamedTuple):
    """The key of a graph for generations. The excerpt of the runner lacks the class."""

    batch_size: int = BATCH
    draft_len: int = 0
    num_contexts: int = 0
    context_query_len: int = 0
    num_encoder_tokens: int = 0
    is_first_draft: bool = False


class Adapter(NamedTuple):
    """The cache of adapters says this about one module of one layer."""

    adapter_size: int
    weights_in_pointer: int
    weights_out_pointer: int
    layer_id: int = LAYER
    module_id: int = MODULE


class TablesServer(Server):
    """No manager and no loop: each arrival is a batch with an adapter of its own."""

    def _manager(self) -> Any:
        return SimpleNamespace(tokens_per_block=self.shape.tokens_per_block)

    def _metadata(self) -> Any:
        return None

    def _executor(self) -> Any:
        module = of_the_tree(LORA_PARAMS).CudaGraphLoraParams
        layer = module.LoraLayerInfo(module_num=1, output_sizes=[8], input_hidden_size=8)
        key = module.LoraLayerKey(layer_idx=LAYER, module_ids=(MODULE,))
        self.params = module(max_batch_size=BATCH, max_lora_size=SLOTS, max_rank=64, layer_info={key: layer})
        runner = import_module(f"{EXECUTOR}.cuda_graph_runner")
        vars(runner)["KeyType"] = GraphKey
        self.runner = object.__new__(runner.CUDAGraphRunner)
        vars(self.runner).update(
            config=SimpleNamespace(use_mrope=False),
            shared_static_tensors={
                "input_ids": torch.ones(BATCH, dtype=torch.int32, device="cuda"),
                "position_ids": torch.zeros(1, BATCH, dtype=torch.int32, device="cuda"),
            },
            graphs={},
            graph_outputs={},
            graph_metadata={},
            max_beam_width=1,
            memory_pool=None,
            is_warmup_only=False,
            WARMUP_STEPS=1,
        )
        return SimpleNamespace()

    def serve(self, arrivals: list[Arrival], cancels: dict[int, list[int]] | None = None) -> Outcome:
        del cancels
        outcome = Outcome()
        try:
            with cuda.stream(self.stream):
                inputs = self._captured()
                seen = [self._step(arrival, inputs) for arrival in arrivals]
            self.device.settle()
        except Exception as error:
            outcome.died = f"{type(error).__name__}: {error}"
            return outcome
        for arrival, (tables, meant) in zip(arrivals, seen, strict=True):
            for name, table in tables.items():
                found = late.plain(table).flatten().tolist()
                if found != meant[name]:
                    outcome.remarks.append(f"batch {arrival.id}: the graph read {name} {found}, not {meant[name]}")
            outcome.answered.append(arrival.id)
        return outcome

    def _captured(self) -> dict[str, Any]:
        inputs = {
            "attn_metadata": SimpleNamespace(),
            "input_ids": torch.ones(BATCH, dtype=torch.int32, device="cuda"),
            "position_ids": torch.zeros(1, BATCH, dtype=torch.int32, device="cuda"),
            "lora_params": {"cuda_graph_params": self.params},
        }
        self.runner.capture(GraphKey(), self._experts, inputs, enable_spec_decode=False, postprocess_fn=None)
        self.device.settle()
        return inputs

    def _experts(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The layer of experts, as its backend reads the tables: copied from where they lie, inside the graph."""
        params = inputs["lora_params"]["cuda_graph_params"]
        ranks, pointers = params.get_moe_slot_inputs(LAYER, MODULE)
        tables = {"ranks": ranks, "pointers": pointers, "slots": params.token_to_slot_host}
        found = {}
        for name, table in tables.items():
            found[name] = late.on_device(tuple(table.shape), table.dtype)
            graphs.read(found[name], table)
        return found

    def _step(self, arrival: Arrival, inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[int]]]:
        """Calls what `LoraParamBuilder` calls for a batch, and the replay behind it."""
        self.device.hold()
        adapter = Adapter(arrival.id, 1000 * arrival.id, 1000 * arrival.id + 1)
        slots = [arrival.id % SLOTS] * BATCH
        tasks = tuple(arrival.id if slot == slots[0] else None for slot in range(SLOTS))
        self.params.update_sorted_indices(slots, tokens_per_seq=1)
        self.params.update_weight_pointers({arrival.id: [adapter]}, tasks)
        self.params.update_slots_params(slots, tokens_per_seq=1)
        outputs: Any = self.runner.replay(GraphKey(), current_inputs=inputs)
        read = {name: late.on_device(tuple(each.shape), each.dtype) for name, each in outputs.items()}
        for name, each in outputs.items():
            late.enqueue_copy(read[name], each, non_blocking=True)
        mine = [slot == slots[0] for slot in range(SLOTS)]
        pointers = [adapter.weights_in_pointer, adapter.weights_out_pointer, 0]
        meant = {
            "ranks": [arrival.id if is_mine else 0 for is_mine in mine],
            "pointers": [value for is_mine in mine for value in (pointers if is_mine else [0, 0, 0])],
            "slots": slots,
        }
        return read, meant
