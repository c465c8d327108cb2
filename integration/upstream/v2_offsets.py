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
            # The early kernel passes pages on, the later one scales them.
            arrived, sent = late.plain(tensor)[0, 0, 0].tolist(), self._pages(arrival)
            if arrived not in (sent, [2 * page for page in sent]):
                outcome.wrong_rows.append(f"request {arrival.id}: the device has {arrived}, sent was {sent}")
            outcome.answered.append(arrival.id)
        return outcome

    def _launch(self, arrival: Arrival) -> Any:
        """One step: the runtime writes the request's row, and upstream's method launches the copy."""
        self.device.hold()
        row = self.manager.index_mapper.add_new_sequence(arrival.id)
        self.manager.host_kv_cache_block_offsets[0, row, 0] = torch.tensor(self._pages(arrival), dtype=torch.int32)
        output = late.on_device((1, self.shape.max_batch_size, 2, BLOCKS), torch.int32)
        self.manager.copy_batch_block_offsets(output, [arrival.id], 1, 1, 1)
        # The request ends in the next step, and its row goes to the request that comes then.
        self.manager.index_mapper.remove_sequence(arrival.id)
        return output

    @staticmethod
    def _pages(arrival: Arrival) -> list[int]:
        return [100 * arrival.id + ordinal for ordinal in range(BLOCKS)]


def _has_v2(module: Any) -> bool:
    return "KVCacheManagerV2" in vars(module)
