"""A step on the device: the model over paged keys and values, found by the tables that have arrived there.

The shape of a step comes with its launch, as the grid of a kernel does. Everything else is read when it runs.
"""

from functools import partial
from typing import Any

from trtllm_kvfix.engine.batch import StepBatch
from trtllm_kvfix.engine.cache import Cache
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.inputs import GraphAdapters, Inputs
from trtllm_kvfix.engine.machine import DeviceMemory, Machine
from trtllm_kvfix.engine.model import Array, Model, attend
from trtllm_kvfix.engine.tables import Tables

REHEARSED = 8  # numbers of tokens
RESULTS = 3  # of steps: one is read while the next two may be on their way


class Forward:
    def __init__(
        self, machine: Machine, config: EngineConfig, model: Model, cache: Cache, tables: Tables, inputs: Inputs
    ) -> None:
        self._machine = machine
        self._model = machine.load(model)
        self._pages = cache.pages
        self._pages_last = len(cache.pages) - 1
        self._pages_of_layer = 1 + cache.v_offset
        self._tokens_per_block = config.tokens_per_block
        self._table = tables.destination.array[0]
        self._inputs = inputs.device
        self._last = DeviceMemory(machine, (config.requests_max,))  # by seat: the newest token
        self._results = [machine.device.pinned((config.requests_max,), "int32") for _ in range(RESULTS)]
        self._reads: Any = [each.array for each in self._results]
        self._adapters = GraphAdapters(machine, config) if config.graphs else None
        self._replays: dict[int, Any] = {}  # CUDA graphs, by the number of rows
        if not machine.simulated:
            self._rehearse(config)

    def launch(self, batch: StepBatch, step: int) -> None:
        """Launch a step behind its inputs and tables. Its tokens are then copied to where `tokens` reads them."""
        singles = sum(part.tokens == 1 for part in batch.parts)
        if self._adapters is not None and batch.generates_only:
            self._adapters.write([part.request.adapter for part in batch.parts])
            self._adapters.replay()
            self._replay(singles, batch.blocks(self._tokens_per_block))
            self._adapters.replayed()
        else:
            chunks = tuple(part.tokens for part in batch.parts[: len(batch.parts) - singles])
            blocks = batch.blocks(self._tokens_per_block)
            self._machine.launch(partial(self._run, chunks, singles, blocks, self._inputs.adapters))
        self._machine.copy(self._results[step % RESULTS], self._last, self._last.nbytes)

    def tokens(self, step: int) -> list[int]:
        """The new tokens by seat; the step has ended."""
        found: list[int] = self._reads[step % RESULTS].tolist()
        return found

    def close(self) -> None:
        self._replays.clear()
        if self._adapters is not None:
            self._adapters.close()

    # ---- what runs ----

    def _run(self, chunks: tuple[int, ...], singles: int, blocks: int, adapters: Array) -> None:
        xp, given, rows = self._machine.xp, self._inputs, len(chunks) + singles
        count = sum(chunks) + singles
        sources, positions = given.sources[:count], given.positions[:count]
        tokens = xp.where(sources >= 0, self._last.array[xp.clip(sources, 0, None)], given.tokens[:count])
        attention = partial(self._attention, chunks, singles, blocks, positions, given.rows[:count])
        hidden = self._model.hidden(xp, tokens, positions, attention)
        logits = self._model.logits(hidden[xp.clip(given.ends[:rows], 0, count - 1)], adapters[:rows])
        self._last.array[given.seats[:rows]] = xp.asarray(logits.argmax(-1), dtype=xp.int32)

    def _attention(
        self, chunks: tuple[int, ...], singles: int, blocks: int, positions: Array, rows: Array,
        layer: int, queries: Array, keys: Array, values: Array,
    ) -> Array:  # fmt: skip
        """Write the new tokens' pages, then read each row's."""
        block, offset = positions // self._tokens_per_block, positions % self._tokens_per_block
        for side, new in enumerate((keys, values)):
            self._pages[self._page(self._table[rows, side, block], layer), :, offset] = new
        read, begin = [], 0
        for row, count in enumerate(chunks):
            at = slice(begin, begin + count)
            read.append(self._read(layer, slice(row, row + 1), queries[at][None], positions[at][None], blocks)[0])
            begin += count
        if singles:
            own = slice(len(chunks), len(chunks) + singles)
            read.append(self._read(layer, own, queries[begin:, None], positions[begin:, None], blocks)[:, 0])
        return self._machine.xp.concatenate(read)

    def _read(self, layer: int, rows: slice, queries: Array, positions: Array, blocks: int) -> Array:
        keys, values = (self._gathered(self._table[rows, side, :blocks], layer) for side in (0, 1))
        xp = self._machine.xp
        places = xp.arange(keys.shape[1], **({} if self._machine.simulated else {"device": "cuda"}))
        return attend(xp, queries, keys, values, places <= positions[:, :, None])

    def _gathered(self, pages: Array, layer: int) -> Array:
        """[rows, length, KV heads, size]"""
        found = self._pages[self._page(pages, layer)].swapaxes(2, 3)
        return found.reshape(len(pages), -1, *found.shape[3:])

    def _page(self, page: Array, layer: int) -> Array:
        """The page for an entry. With a wrong entry a GPU would read some memory, or fault; here it reads some page."""
        return self._machine.xp.clip(page + layer * self._pages_of_layer, 0, self._pages_last)

    # ---- CUDA graphs ----

    def _replay(self, rows: int, blocks: int) -> None:
        if self._machine.simulated:
            assert self._adapters is not None, "only engines with graphs replay"
            self._machine.launch(partial(self._run, (), rows, blocks, self._adapters.device))
        else:
            self._replays[rows].replay()

    def _rehearse(self, config: EngineConfig) -> None:
        """Capture; and where steps are held, launch what will be launched: a driver may wait for a held stream to load
        a kernel. These runs write to pages that no request has yet.
        """
        blocks_max, others = self._table.shape[2], config.requests_max - 1
        self._machine.settle()
        with self._machine.current():
            step = -(-config.tokens_max // REHEARSED)
            for count in range(2, config.tokens_max - others, step) if config.late_every else ():
                for blocks in {1, blocks_max // 4 + 1, blocks_max // 2 + 1, blocks_max}:
                    for singles in {0, 1, others}:
                        self._run((count,), singles, blocks, self._inputs.adapters)
            if self._adapters is not None:
                self._capture(config.requests_max, blocks_max, self._adapters.device)
            self._pages[:] = 0
            self._last.array[:] = 0
            self._machine.settle()

    def _capture(self, rows_max: int, blocks: int, adapters: Array) -> None:
        """One for each number of rows. Without torch's own context, which collects garbage each time."""
        pool = self._machine.xp.cuda.graph_pool_handle()
        for rows in range(rows_max, 0, -1):
            self._run((), rows, blocks, adapters)
            self._machine.settle()
            self._replays[rows] = graph = self._machine.xp.cuda.CUDAGraph()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._run((), rows, blocks, adapters)
            finally:
                graph.capture_end()
