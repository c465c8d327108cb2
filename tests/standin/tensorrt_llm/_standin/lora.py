"""LoRA on experts in CUDA graphs: who has which slot, and the experts that read the tables (surface 8)."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from .._torch.peft.lora.cuda_graph_lora_params import CudaGraphLoraParams
from . import pauses
from .tensors import tensors
from .witness import Witness

LAYER, MODULE = 0, 0
RANK_MAX = 8


def tables(max_batch_size: int, max_lora_size: int, max_rank: int = RANK_MAX) -> CudaGraphLoraParams:
    layer = CudaGraphLoraParams.LoraLayerInfo(module_num=1, output_sizes=[8], input_hidden_size=8)
    key = CudaGraphLoraParams.LoraLayerKey(layer_idx=LAYER, module_ids=(MODULE,))
    return CudaGraphLoraParams(max_batch_size, max_lora_size, max_rank, {key: layer})


def adapter(task: int) -> Any:
    """An entry of the cache of adapters: numbers that no other adapter has say where its weights lie."""
    return SimpleNamespace(
        adapter_size=1 + task % RANK_MAX,
        weights_in_pointer=10 * task + 1,
        weights_out_pointer=10 * task + 2,
        layer_id=LAYER,
        module_id=MODULE,
    )


class CudaGraphLoraManager:
    """Gives each adapter of a batch a slot, taking those away that the batch does not need."""

    def __init__(self, max_lora_size: int, max_batch_size: int) -> None:
        self.cuda_graph_lora_params = tables(max_batch_size, max_lora_size)
        self._slots: list[int | None] = [None] * max_lora_size

    def prepare_cuda_graph_lora_params(self, tasks: list[int]) -> dict[str, Any]:
        changed = self._seat(tasks)
        params = self.cuda_graph_lora_params
        pauses.reach(pauses.WRITE_LORA)
        params.update_sorted_indices([self._slots.index(task) for task in tasks], tokens_per_seq=1)
        if changed:
            params.update_weight_pointers({task: [adapter(task)] for task in tasks}, tuple(self._slots))
        pauses.reach(pauses.LORA_WRITTEN)
        return {"cuda_graph_params": params, "use_cuda_graph_mode": True, "num_seqs": len(tasks)}

    def _seat(self, tasks: list[int]) -> bool:
        missing = [task for task in dict.fromkeys(tasks) if task not in self._slots]
        for task in missing:
            self._slots[next(slot for slot, held in enumerate(self._slots) if held not in tasks)] = task
        return bool(missing)


class Experts:
    """Read the tables on the device, through copies that they enqueue themselves."""

    def __init__(self, max_lora_size: int, max_batch_size: int) -> None:
        self.token_to_slot = tensors().on_device(max_batch_size)
        self.ranks = tensors().on_device(max_lora_size)
        self.pointers = tensors().on_device(max_lora_size, 3)

    def forward(self, lora_params: dict[str, Any]) -> None:
        """Everything that is enqueued here is captured."""
        params = lora_params["cuda_graph_params"]
        ranks, pointers = params.get_moe_slot_inputs(LAYER, MODULE)
        self.token_to_slot.copy_(params.token_to_slot_host, non_blocking=True)
        self.ranks.copy_(ranks, non_blocking=True)
        self.pointers.copy_(pointers, non_blocking=True)

    def watch(self, witness: Witness, request_ids: list[int], lora_params: dict[str, Any]) -> None:
        """Behind the replay: what the tables held when the host had prepared this step is what it should have read."""
        params = lora_params["cuda_graph_params"]
        slots = params.token_to_slot_host.numpy()[: len(request_ids), None].copy()
        witness.take("lora slots", request_ids, slots, self.token_to_slot)
        by_slot = list(range(params.max_lora_size))
        ranks, *pointers = (
            each.numpy().copy() for each in (params.slot_ranks_host, params.h_b_ptrs, params.h_b_prime_ptrs)
        )
        witness.take("lora weights", by_slot, ranks[:, None], self.ranks)
        pointers.append(np.zeros_like(ranks))
        witness.take("lora weights", by_slot, np.stack(pointers, axis=1), self.pointers)
