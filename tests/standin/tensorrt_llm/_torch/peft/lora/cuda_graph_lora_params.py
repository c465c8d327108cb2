"""The host tables of LoRA that CUDA graphs read by address at every replay (surface 8)."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

from ...._standin.tensors import tensors
from ...._standin.variant import MANGLED


class CudaGraphLoraParams:
    """Persistent and pinned: a graph holds their addresses, so each step fills them in place. One module, one layer."""

    LoraLayerKey = namedtuple("LoraLayerKey", ["layer_idx", "module_ids"])

    @dataclass
    class LoraLayerInfo:
        module_num: int = 0
        output_sizes: Any = None
        input_hidden_size: int = 0

    def __init__(
        self,
        max_batch_size: int,
        max_lora_size: int,
        max_rank: int,
        layer_info: dict[Any, Any],
        device: str = "cuda",
        max_tokens_per_seq: int = 1,
    ) -> None:
        del device
        ((key, info),) = layer_info.items()
        assert info.module_num > 0 and len(info.output_sizes) == info.module_num == len(key.module_ids) == 1
        self.places = {(key.layer_idx, module_id) for module_id in key.module_ids}
        self.max_lora_size = max_lora_size
        self.max_rank = max_rank
        self.token_to_slot_host = tensors().pinned(max_batch_size * max_tokens_per_seq)
        self.slot_ranks_host = tensors().pinned(max_lora_size)
        self.h_b_ptrs = tensors().pinned(max_lora_size)
        self.h_b_prime_ptrs = tensors().pinned(max_lora_size)
        self._moe_slot_cache: dict[tuple[int, int], tuple[Any, Any]] = {}

    if not MANGLED:

        def update_sorted_indices(self, slot_ids: list[int], tokens_per_seq: int = 1) -> None:
            self._fill_token_to_slot(slot_ids, tokens_per_seq)

    else:

        def update_sorted_indices(self, plan: Any) -> None:  # type: ignore[misc]  # by variant
            self._fill_token_to_slot(plan.slot_ids, plan.tokens_per_seq)

    def _fill_token_to_slot(self, slot_ids: list[int], tokens_per_seq: int) -> None:
        slots = [slot for slot in slot_ids for _ in range(tokens_per_seq)]
        self.token_to_slot_host.numpy()[: len(slots)] = slots

    def update_weight_pointers(
        self, peft_table: dict[int, list[Any]] | None, slot_to_task_mapping: tuple[int | None, ...]
    ) -> None:
        for slot, task in enumerate(slot_to_task_mapping):
            if task is None:
                self._fill_slot(slot, 0, 0, 0)
            elif peft_table is not None and task in peft_table:
                (config,) = peft_table[task]
                assert (config.layer_id, config.module_id) in self.places
                self._fill_slot(slot, config.adapter_size, config.weights_in_pointer, config.weights_out_pointer)
        for layer_idx, module_id in self._moe_slot_cache:
            self.get_moe_slot_inputs(layer_idx, module_id)

    def _fill_slot(self, slot: int, rank: int, weights_in: int, weights_out: int) -> None:
        self.slot_ranks_host.numpy()[slot] = rank
        self.h_b_ptrs.numpy()[slot] = weights_in
        self.h_b_prime_ptrs.numpy()[slot] = weights_out

    def get_moe_slot_inputs(self, layer_idx: int, module_id: int) -> tuple[Any, Any] | None:
        """Ranks and pointers by slot, for the experts of a layer. The tables stay where they are."""
        key = (layer_idx, module_id)
        if key not in self.places:
            return None
        if key not in self._moe_slot_cache:
            self._moe_slot_cache[key] = tensors().pinned(self.max_lora_size), tensors().pinned(self.max_lora_size, 3)
        ranks, pointers = self._moe_slot_cache[key]
        ranks.numpy()[:] = self.slot_ranks_host.numpy()
        pointers.numpy()[:, 0] = self.h_b_ptrs.numpy()
        pointers.numpy()[:, 1] = self.h_b_prime_ptrs.numpy()
        return ranks, pointers
