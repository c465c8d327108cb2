"""Serves requests over the native manager and attends through somebody else's paged attention.

Keys and values name a token's whole prefix. They are written where `get_buffers` of upstream's V1 manager shows a slot,
and read by PyTorch's FlexAttention, whose page table is made of the block offsets that attention kernels get: a page
there is what an offset counts, one layer's K or V of one block. Dense attention over what should be there is compared.
Layers take turns with the windows: in one of them a token sees itself and those just before it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from trtllm_kvfix import native
from trtllm_kvfix.managers.capacity import scheduler_for
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.staging import on_stream

LAYERS = 3
KV_HEADS = 2
Q_HEADS = 4
HEAD_SIZE = 64
NAMES = 4096  # different keys, and values, of one head
TOLERANCE = 2e-2  # of halves; keys of another prefix are off by about 1


class Request:
    """The manager asks this much of a request."""

    is_dummy_request = False
    lora_task_id = cache_salt_id = py_multimodal_data = None

    def __init__(self, request_id: int, prompt: Sequence[int], new_tokens: int) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.prompt_len = self.context_chunk_size = len(prompt)
        self.max_new_tokens = new_tokens
        self.context_current_position = 0

    @property
    def is_context_init_state(self) -> bool:
        return self.context_current_position < self.prompt_len

    @property
    def is_generation_in_progress_state(self) -> bool:
        return not self.is_context_init_state

    is_generation_complete_state = False

    @property
    def is_first_context_chunk(self) -> bool:
        return self.context_current_position == 0

    @property
    def is_finished(self) -> bool:
        return len(self.tokens) == self.prompt_len + self.max_new_tokens

    def get_tokens(self, _beam: int) -> list[int]:
        return self.tokens

    def get_num_tokens(self, _beam: int) -> int:
        return len(self.tokens)


class Model:
    """Keys, values and queries of a token and everything before it."""

    def __init__(self, device: str) -> None:
        make = torch.Generator().manual_seed(1)
        shape = (LAYERS, 2, NAMES, KV_HEADS, HEAD_SIZE)
        self.sides = torch.randn(shape, generator=make).half().to(device)
        self.queries = torch.randn((LAYERS, NAMES, Q_HEADS, HEAD_SIZE), generator=make).half().to(device)

    @staticmethod
    def names(tokens: Sequence[int]) -> list[int]:
        name, found = 1, []
        for token in tokens:
            name = hash((name, token))
            found.append(name % NAMES)
        return found

    def dense(self, layer: int, names: Sequence[int], queries: int, window: int) -> Any:
        """[heads, queries, size] of the last `queries` positions."""
        keys, values = (self.sides[layer, side, names].float().transpose(0, 1) for side in (0, 1))
        asked = self.queries[layer, names[-queries:]].float().transpose(0, 1)
        group = Q_HEADS // KV_HEADS
        before = len(names) - queries
        seen = torch.ones(queries, len(names), dtype=torch.bool, device=keys.device)
        seen = seen.tril(before).triu(before - window + 1)
        return torch.nn.functional.scaled_dot_product_attention(
            asked, keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0), attn_mask=seen
        )


@dataclass(frozen=True)
class Sizes:
    blocks: int  # of each window, and so many on the host
    host: int
    unit: int  # tokens per block
    windows: tuple[int, ...] = (1024,)  # the largest is a whole sequence
    chunk: int = 1024  # tokens of a prompt in one step
    behind: int = 0  # tokens that the model reads behind its window; they may have gone


class Server:
    def __init__(self, device: native.Device, stream: int, sizes: Sizes) -> None:
        self.device, self.stream, self.sizes, self.unit = device, stream, sizes, sizes.unit
        self.where = "cpu" if device.simulated else "cuda"
        self.model = Model(self.where)
        self.impl = NativeKvCache(**keywords(sizes, stream))
        self.impl.allocate_pools(False)
        # Masked lanes multiply what lies in a slot that nobody has written, and memory may hold NaN of earlier owners.
        # Like upstream, the manager does not clear its pools.
        for layer in range(LAYERS):
            self.impl.get_primary_pool_data(layer)[:] = 0
        self.mapping = self.impl.get_layer_to_pool_mapping().tolist()
        capacity = scheduler_for(8, self.impl)
        assert capacity is not None
        self.capacity = capacity
        self.attend: Callable[..., Any] = flex_attention
        self.compared = 0

    def window(self, layer: int) -> int:
        return self.sizes.windows[layer % len(self.sizes.windows)]

    def reach(self, layer: int) -> int:
        return self.window(layer) + self.sizes.behind

    # ---- one iteration, as upstream's loop does it ----

    def serve(self, requests: Sequence[Request], at_once: int = 4) -> None:
        waiting, active = list(requests), list[Request]()
        while waiting or active:
            while waiting and len(active) < at_once:
                active.append(waiting.pop(0))
            fitting, _, _ = self.capacity.schedule_request(active)
            assert fitting, "nobody fits, and nobody runs"
            self.step(fitting)
            for each in [each for each in fitting if each.is_finished]:
                self.impl.remove_sequence(each.request_id, each, False)
                active.remove(each)

    def step(self, batch: Sequence[Request]) -> None:
        contexts = [each for each in batch if each.is_context_init_state]
        generations = [each for each in batch if not each.is_context_init_state]
        for each in contexts:
            each.context_chunk_size = min(self.sizes.chunk, each.prompt_len - each.context_current_position)
        self.impl.sync_transfer_manager_with_buffer_manager()
        for each in contexts:
            if each.is_first_context_chunk:
                self.impl.add_sequence(each.request_id, each.prompt_len, 1, each)
        for each in generations:
            self.impl.add_token(each.request_id)
        self.impl.refresh_blocks()
        if self.device.simulated:
            self.device.synchronize(self.stream)  # torch on the CPU knows no streams
        for each in contexts:
            self._compute_chunk(each)
        for each in generations:
            self._write(each, len(each.tokens) - 1, len(each.tokens))
        if generations:
            self._compare(generations, [len(each.tokens) for each in generations], queries=1)
        for each in contexts:
            self.impl.store_context_blocks(each)
        for each in batch:
            if not each.is_context_init_state:
                each.tokens.append(hash((each.request_id, len(each.tokens))) % 50_000)

    def _compute_chunk(self, request: Request) -> None:
        begin = request.context_current_position
        end = min(begin + request.context_chunk_size, request.prompt_len)
        self._write(request, begin, end)
        self._compare([request], [end], queries=min(8, end - begin))
        request.context_current_position = end

    def _write(self, request: Request, begin: int, end: int) -> None:
        """The model computes keys and values of these tokens, where `get_buffers` shows their slots."""
        names = self.model.names(request.tokens)[begin:end]
        places = np.arange(begin, end)
        inside = torch.tensor(places % self.unit, device=self.where)
        for layer in range(LAYERS):
            (slots,) = self.impl.get_cache_block_ids(request.request_id, self.window(layer))
            rows = torch.tensor([slots[place // self.unit] for place in places], device=self.where)
            memory = self.impl.get_primary_pool_data(layer)
            buffers = memory.view(memory.shape[0], 2, self.unit, KV_HEADS, HEAD_SIZE)
            for side in (0, 1):
                buffers[rows, side, inside] = self.model.sides[layer, side, names]

    def _compare(self, batch: Sequence[Request], ends: Sequence[int], queries: int) -> None:
        table = np.zeros((self.impl.num_pools, len(batch), 2, self.impl.max_blocks_per_seq), np.int32)
        self.impl.copy_batch_block_offsets(table, [each.request_id for each in batch], 1, 0)
        names = [self.model.names(each.tokens)[:end] for each, end in zip(batch, ends, strict=True)]
        for layer in range(LAYERS):
            found = self._paged(layer, names, table, queries)
            for row, own in enumerate(names):
                wanted = self.model.dense(layer, own, queries, self.reach(layer))
                torch.testing.assert_close(found[row].float(), wanted, atol=TOLERANCE, rtol=TOLERANCE)
                self.compared += 1

    def _paged(self, layer: int, names: Sequence[Sequence[int]], table: Any, queries: int) -> Any:
        """FlexAttention over the whole pool as it lies: [1, heads, tokens of all pages, size], V one page behind K."""
        pool, place = self.mapping[layer]
        offsets = table[pool] + 2 * place
        rows = self._pages_of(layer)
        keys, values = (each.transpose(0, 1)[None] for each in (rows[: -self.unit], rows[self.unit :]))
        pages = PagedAttention(keys.shape[2] // self.unit, self.unit, len(names), self.where)
        begins = torch.tensor([len(own) - queries for own in names], device=self.where)
        reach = torch.full((len(names),), self.reach(layer), device=self.where)
        for row, own in enumerate(names):
            held = -(-len(own) // self.unit)
            assert (offsets[row, 1, :held] == offsets[row, 0, :held] + 1).all()
            mine = torch.tensor(offsets[row, 0, :held], dtype=torch.int64, device=self.where)
            pages.page_table[row, :held] = mine
            # A page that left the window bears the name of the first one that did not.
            first = max(0, len(own) - queries + 1 - self.reach(layer)) // self.unit
            pages.physical_to_logical[row, mine[first:]] = torch.arange(first, held, device=self.where)

        def seen(b: Any, _head: Any, q: Any, kv: Any) -> Any:
            query = begins[b] + q
            return (kv <= query) & (kv > query - reach[b])

        longest = -(-max(len(own) for own in names) // self.unit) * self.unit
        mask = create_block_mask(
            seen, len(names), None, queries, longest, device=self.where, BLOCK_SIZE=(128, self.unit)
        )
        asked = torch.stack([self.model.queries[layer, own[-queries:]].transpose(0, 1) for own in names])
        return self.attend(asked, keys, values, block_mask=pages.convert_logical_block_mask(mask), enable_gqa=True)

    def _pages_of(self, layer: int) -> Any:
        """The pool of a layer from its pointer to its end: [tokens of all pages, heads, size]."""
        memory = self.impl.get_primary_pool_data(layer)
        value = KV_HEADS * HEAD_SIZE
        rows = memory.shape[0] * memory.stride(0) // value
        whole = memory.as_strided((rows, KV_HEADS, HEAD_SIZE), (value, HEAD_SIZE, 1), 0)
        assert whole.data_ptr() == int(self.impl.get_block_pool_pointers()[self.mapping[layer][0], 0])
        return whole


def keywords(sizes: Sizes, stream: int) -> dict[str, Any]:
    longest = max(sizes.windows)
    return {
        "num_kv_heads_per_layer": [KV_HEADS] * LAYERS,
        "size_per_head": HEAD_SIZE,
        "tokens_per_block": sizes.unit,
        "blocks_per_window": dict.fromkeys(sizes.windows, (sizes.blocks, sizes.host)),
        "max_num_sequences": 8,
        "max_beam_width": 1,
        "max_attention_window_vec": list(sizes.windows),
        "temp_attention_window_inputs": SimpleNamespace(max_num_tokens=sizes.chunk) if len(sizes.windows) > 1 else None,
        "dtype": SimpleNamespace(name="HALF"),
        "sink_token_length": 0,
        "stream": stream,
        "max_sequence_length": longest,
        "enable_block_reuse": True,
        "onboard_blocks": True,
    }


@contextmanager
def serving(sizes: Sizes) -> Iterator[Server]:
    """Serves on the GPU that torch sees, or else on the simulated device."""
    if torch.cuda.is_available():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            server = Server(native.open_device("cuda"), stream.cuda_stream, sizes)
            yield server
            stream.synchronize()
            server.impl.release_pools()
        return
    device = native.open_device("cpu")
    number = device.create_stream()
    with on_stream(device, number):
        server = Server(device, number, sizes)
        yield server
        server.impl.release_pools()
