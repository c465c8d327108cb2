"""Block offsets of the V2 manager: upstream's own method launches, and later steps write the table and the copy index.

The V2 runtime is not here. What it writes into the rows, and when, is ours: a row for each request before its step, and
the rows of other requests in the next. Nothing is computed; what arrives on the device is compared.
"""

import sys
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import cuda, late
from integration.upstream.arrivals import Arrival
from integration.upstream.loading import EXECUTOR, V2_BINDINGS
from integration.upstream.server import Outcome, Server
from trtllm_kvfix.staging import current_place

BLOCKS = 8  # of a row; the kernel wants a multiple of four
PLACES = ("kv_cache.kv_cache_manager_v2", "kv_cache_manager_v2", "resource_manager")


class OffsetsServer(Server):
    """A V2 manager whose batches are launched one after the other while the stream is held."""

    def _manager(self) -> Any:
        module = next(m for place in PLACES if (m := sys.modules.get(f"{EXECUTOR}.{place}")) and _has_v2(m))
        utils = sys.modules[V2_BINDINGS]
        rows = self.shape.max_batch_size + 1
        manager = object.__new__(module.KVCacheManagerV2)
        vars(manager).update(
            tokens_per_block=self.shape.tokens_per_block,
            max_batch_size=self.shape.max_batch_size,
            kv_cache_type=self.batch_manager.CacheType.SELF,
            index_mapper=utils.IndexMapper(rows, 1),
            host_kv_cache_block_offsets=torch.zeros(1, rows, 2, BLOCKS, dtype=torch.int32, pin_memory=True),
            index_scales=torch.full((1,), 2, dtype=torch.int32, pin_memory=True),
            kv_offset=torch.ones(1, dtype=torch.int32, pin_memory=True),
            _use_per_layer_page_tables=False,
            _stream=self.stream,
            # For the filter of equal launches: what the table means, and room for a batch's rows.
            _page_index_key=((2,), (1,)),
            _page_index_payload=torch.empty(1, rows, BLOCKS, dtype=torch.int32),
        )
        return manager

    def _metadata(self) -> Any:
        return None

    def _executor(self) -> Any:
        return SimpleNamespace()

    def serve(self, arrivals: list[Arrival], cancels: dict[int, list[int]] | None = None) -> Outcome:
        del cancels
        outcome = Outcome()
        try:
            with cuda.stream(self.stream):
                seen = [self._launch(arrival) for arrival in arrivals]
            self.device.settle()
        except Exception as error:
            outcome.died = f"{type(error).__name__}: {error}"
            return outcome
        for arrival, tensor in zip(arrivals, seen, strict=True):
            self._judge_sent(arrival, tensor, outcome)
            outcome.answered.append(arrival.id)
        return outcome

    def _judge_sent(self, arrival: Arrival, tensor: Any, outcome: Outcome) -> None:
        # The early kernel passes pages on, the later one scales them.
        arrived, sent = late.plain(tensor)[0, 0, 0].tolist(), self._pages(arrival)
        if arrived not in (sent, [2 * page for page in sent]):
            outcome.wrong_rows.append(f"request {arrival.id}: the device has {arrived}, sent was {sent}")

    def _launch(self, arrival: Arrival) -> Any:
        """One step: the runtime writes the request's row, and upstream's method launches the copy."""
        self.device.hold()
        row = self.manager.index_mapper.add_new_sequence(arrival.id)
        self.manager.host_kv_cache_block_offsets[0, row, 0] = torch.tensor(self._pages(arrival), dtype=torch.int32)
        output = self._output()
        self.manager.copy_batch_block_offsets(output, [arrival.id], 1, 1, 1)
        # The request ends in the next step, and its row goes to the request that comes then.
        self.manager.index_mapper.remove_sequence(arrival.id)
        return output

    def _output(self) -> Any:
        return late.on_device((1, self.shape.max_batch_size, 2, BLOCKS), torch.int32)

    @staticmethod
    def _pages(arrival: Arrival) -> list[int]:
        return [100 * arrival.id + ordinal for ordinal in range(BLOCKS)]


SCALES, LAYER_OFFSETS = (2, 3), (0, 1)  # of two layers, whose heads differ in size
SCRATCH = range(1, 3)  # these blocks of a prompt have scratch pages


class ByLayerServer(OffsetsServer):
    """Each layer has a table of its own. The method that fills them is upstream's, and so are its three ways to the
    device: the whole table, the copy index, the scratch ranges. The compiled function behind these is ours.
    """

    def _manager(self) -> Any:
        manager = super()._manager()
        module = sys.modules[type(manager).__module__]
        vars(module)["_copy_swa_block_offsets_with_scratch_compiled"] = tables_of_layers
        rows, layers = self.shape.max_batch_size + 1, len(SCALES)
        shapes = {"begs": (1, rows), "ends": (1, rows), "slots": (1, rows, len(SCRATCH))}
        for name, shape in shapes.items():
            vars(manager)[f"_host_scratch_{name}_staging"] = late.pinned(shape, torch.int32)
            vars(manager)[f"_device_scratch_{name}_staging"] = late.on_device(shape, torch.int32)
        vars(manager).update(
            _use_per_layer_page_tables=True,
            num_pools=1,
            num_attention_op_pools=layers,
            kv_cache_map={},
            _max_scratch_slots=len(SCRATCH),
            _device_copy_idx_staging=late.on_device((rows,), torch.long),
            _device_kv_cache_block_offsets_input=late.on_device((1, rows, 2, BLOCKS), torch.int32),
            _device_attention_op_block_offsets_staging=late.on_device((layers, rows, 2, BLOCKS), torch.int32),
            _device_num_contexts=late.on_device((), torch.int32),
            # They never change, so the function has them as constants.
            **dict.fromkeys(
                [f"_device_attention_op_{name}" for name in ("pool_ids", "scales", "layer_offsets", "scratch_pages")]
            ),
            _device_block_positions=None,
        )
        return manager

    def _launch(self, arrival: Arrival) -> Any:
        slots = self._scratch(arrival)
        desc = SimpleNamespace(slot_ids=slots, range=SimpleNamespace(beg=SCRATCH.start, end=SCRATCH.stop))
        self.manager.kv_cache_map[arrival.id] = SimpleNamespace(get_scratch_desc=lambda _: desc)
        return super()._launch(arrival)

    def _output(self) -> Any:
        return late.on_device((len(SCALES), self.shape.max_batch_size, 2, BLOCKS), torch.int32)

    def _judge_sent(self, arrival: Arrival, tensor: Any, outcome: Outcome) -> None:
        pages = self._pages(arrival)
        pages[SCRATCH.start : SCRATCH.stop] = self._scratch(arrival)
        for layer, (scale, offset) in enumerate(zip(SCALES, LAYER_OFFSETS, strict=True)):
            arrived, sent = late.plain(tensor)[layer, 0, 0].tolist(), [scale * page + offset for page in pages]
            if arrived != sent:
                outcome.wrong_rows.append(f"request {arrival.id}: layer {layer} has {arrived}, sent was {sent}")

    @staticmethod
    def _scratch(arrival: Arrival) -> list[int]:
        return [1000 * arrival.id + ordinal for ordinal in range(len(SCRATCH))]


def tables_of_layers(table: Any, copy_index: Any, *given: Any) -> None:
    """In stream order. What it reads lies on the device by then."""
    *_, begs, ends, slots, num_contexts, output = given
    read = [late.plain(each) for each in (table, copy_index, begs, ends, slots, num_contexts, output)]

    def kernel() -> None:
        table, copy_index, begs, ends, slots, num_contexts, output = read
        for sequence in range(output.shape[1] - 1):
            pages = table[0, copy_index[sequence], 0].clone()
            if sequence < int(num_contexts):
                begin, end = int(begs[0, sequence]), int(ends[0, sequence])
                pages[begin:end] = slots[0, sequence, : max(0, end - begin)]
            for layer, (scale, offset) in enumerate(zip(SCALES, LAYER_OFFSETS, strict=True)):
                output[layer, sequence] = scale * pages + offset

    late.late().run(current_place().stream, kernel)


def _has_v2(module: Any) -> bool:
    return "KVCacheManagerV2" in vars(module)
