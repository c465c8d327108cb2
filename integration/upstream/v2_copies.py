"""Copies of V2's block offsets that do not go by the manager's own launch: another module's, and another kernel's."""

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import late
from integration.upstream.arrivals import Arrival
from integration.upstream.fallbacks import of_the_tree
from integration.upstream.loading import MINIMAX, STEP_COPIES
from integration.upstream.server import Outcome
from integration.upstream.v2_offsets import BLOCKS, OffsetsServer

DRAFT_SCALE = 6
STAGED, BLOCK_COPIES = 4, 2  # of one step; the kernel's module says so, and no excerpt has it
GATHER, WORDS = 18, 10  # arguments of the gather, and of each copy of block offsets


class OwnLaunch(OffsetsServer):
    """MiniMax-M3's manager launches once more, by the name in its own module, for the pool of its draft layers."""

    def _manager(self) -> Any:
        manager = super()._manager()
        own = of_the_tree(MINIMAX).MiniMaxM3KVCacheManagerV2
        manager.__class__ = type(own.__name__, (own, type(manager)), {})
        vars(manager).update(
            _draft_op_pools=((1, 0),),
            _draft_index_scales=torch.full((1,), DRAFT_SCALE, dtype=torch.int32, pin_memory=True),
            _draft_kv_offsets=torch.ones(1, dtype=torch.int32, pin_memory=True),
        )
        self.drafts: list[tuple[Arrival, Any]] = []
        return manager

    def _launch(self, arrival: Arrival) -> Any:
        self.device.hold()
        row = self._enter(arrival)
        output = late.on_device((2, self.shape.max_batch_size, 2, BLOCKS), torch.int32)
        self.manager.copy_batch_block_offsets(output, [arrival.id], 1, 1, 1)
        self._leave(arrival, row)
        self.drafts.append((arrival, output))
        return output

    def serve(self, arrivals: list[Arrival], cancels: dict[int, list[int]] | None = None) -> Outcome:
        outcome = super().serve(arrivals, cancels)
        for arrival, tensor in self.drafts:
            arrived, sent = late.plain(tensor)[1, 0, 0].tolist(), [DRAFT_SCALE * page for page in self._pages(arrival)]
            if arrived != sent:
                outcome.wrong_rows.append(f"request {arrival.id}: the draft's pool has {arrived}, sent was {sent}")
        return outcome

    def _enter(self, arrival: Arrival) -> int:
        row: int = self.manager.index_mapper.add_new_sequence(arrival.id)
        self.manager.host_kv_cache_block_offsets[0, row, 0] = torch.tensor(self._pages(arrival), dtype=torch.int32)
        return row

    def _leave(self, arrival: Arrival, row: int) -> None:
        """The request ends in the next step, and its row goes to the request that comes then."""
        del row
        self.manager.index_mapper.remove_sequence(arrival.id)


class StepCopies(OffsetsServer):
    """One-model speculation stages the copy with `StepInputStage`, whose kernel reads the live table and copy index.

    Nobody has read the caller. It does what the excerpt asks of it: where the stage answers that it does not cover the
    copy, the manager's method makes it.
    """

    def _manager(self) -> Any:
        module = of_the_tree(STEP_COPIES)
        package = sys.modules[STEP_COPIES.rpartition(".")[0]]
        vars(package)["spec_step_copies_kernel"] = SimpleNamespace(STAGED_COPIES=STAGED, BLOCK_COPIES=BLOCK_COPIES)
        module.StepInputStage._kernel = self._kernel
        self.stage = module.StepInputStage(capacity=64)
        return super()._manager()

    def _launch(self, arrival: Arrival) -> Any:
        self.device.hold()
        manager = self.manager
        row = manager.index_mapper.add_new_sequence(arrival.id)
        manager.host_kv_cache_block_offsets[0, row, 0] = torch.tensor(self._pages(arrival), dtype=torch.int32)
        output = late.on_device((1, self.shape.max_batch_size, 2, BLOCKS), torch.int32)
        self.stage.begin()
        # The binding of the excerpts keeps the copy index pinned; the table of the extension is, but does not say so.
        index = manager.index_mapper.get_copy_index([arrival.id], 1, 1).as_subclass(late.PinnedTensor)
        table = manager.host_kv_cache_block_offsets
        if not self.stage.block_copy(output, table, index, manager.index_scales, manager.kv_offset):
            manager.copy_batch_block_offsets(output, [arrival.id], 1, 1, 1)
        self.stage.commit()
        manager.index_mapper.remove_sequence(arrival.id)
        return output

    def _kernel(self, *given: int) -> None:
        """The kernel does this with its block copies, when the stream gets there. It is handed addresses."""
        *arguments, stream = given
        first = GATHER + 1 + 3 * STAGED

        def run() -> None:
            for at in range(first, len(arguments), WORDS):
                _copy_blocks(*arguments[at : at + WORDS])

        self.device.run(stream, run)


def _copy_blocks(
    table: int, offsets: int, index: int, scales: int, kv: int, pools: int, rows: int, out: int, blocks: int, seqs: int
) -> None:
    for pool in range(pools):
        for sequence in range(seqs):
            source = table + 4 * blocks * 2 * (pool * rows + _words(index, seqs)[sequence])
            target = offsets + 4 * blocks * 2 * (pool * out + sequence)
            keys = [max(0, page * _words(scales, pools)[pool]) for page in _words(source, blocks)]
            _words(target, blocks)[:] = keys
            _words(target + 4 * blocks, blocks)[:] = [key + _words(kv, pools)[pool] for key in keys]


def _words(address: int, count: int) -> Any:
    return (ctypes.c_int32 * count).from_address(address)
