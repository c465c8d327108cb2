"""Serves requests over the native manager and attends through somebody else's paged attention.

Keys and values name a token's whole prefix. They are written where `get_buffers` of upstream's V1 manager shows a slot,
and read by PyTorch's FlexAttention, whose page table is made of the block offsets that attention kernels get: a page
there is what an offset counts, one layer's K or V of one block. Dense attention over what should be there is compared.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

LAYERS = 2
KV_HEADS = 2
Q_HEADS = 4
HEAD_SIZE = 64
NAMES = 4096  # different keys, and values, of one head
LENGTH_MAX = 1024
TOLERANCE = 2e-2  # of halves; keys of another prefix are off by about 1


class Request:
    """What the manager asks of a bound request."""

    is_dummy_request = False
    lora_task_id = cache_salt_id = multimodal_hashes = None

    def __init__(self, request_id: int, prompt: Sequence[int], new_tokens: int) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.prompt_len = self.context_chunk_size = len(prompt)
        self.max_new_tokens = new_tokens
        self.context_current_position = 0
        self.is_context_init_state = True

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

    def dense(self, layer: int, names: Sequence[int], queries: int) -> Any:
        """[heads, queries, size] of the last `queries` positions."""
        keys, values = (self.sides[layer, side, names].float().transpose(0, 1) for side in (0, 1))
        asked = self.queries[layer, names[-queries:]].float().transpose(0, 1)
        group = Q_HEADS // KV_HEADS
        seen = torch.ones(queries, len(names), dtype=torch.bool, device=keys.device).tril(len(names) - queries)
        return torch.nn.functional.scaled_dot_product_attention(
            asked, keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0), attn_mask=seen
        )


class Server:
    def __init__(self, device: native.Device, stream: int, *, blocks: int, host: int, tokens_per_block: int) -> None:
        self.device, self.stream, self.unit = device, stream, tokens_per_block
        self.where = "cpu" if device.simulated else "cuda"
        self.model = Model(self.where)
        self.impl = NativeKvCache(**keywords(blocks, host, tokens_per_block, stream))
        self.impl.allocate_pools(False)
        capacity = scheduler_for(8, self.impl)
        assert capacity is not None
        self.capacity = capacity
        self.attend: Callable[..., Any] = flex_attention
        self.compared = 0

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
        self.impl.sync_transfer_manager_with_buffer_manager()
        for each in contexts:
            self.impl.add_sequence(each.request_id, each.prompt_len, 1, each)
        for each in generations:
            self.impl.add_token(each.request_id)
        self.impl.refresh_blocks()
        if self.device.simulated:
            self.device.synchronize(self.stream)  # torch on the CPU knows no streams
        for each in contexts:
            self._write(each, each.context_current_position)
            self._compare([each], queries=min(8, each.prompt_len))
            each.context_current_position, each.is_context_init_state = each.prompt_len, False
        for each in generations:
            self._write(each, len(each.tokens) - 1)
        if generations:
            self._compare(generations, queries=1)
        for each in contexts:
            self.impl.store_context_blocks(each)
        for each in batch:
            each.tokens.append(hash((each.request_id, len(each.tokens))) % 50_000)

    def _write(self, request: Request, begin: int) -> None:
        """What the model computes of the tokens from `begin` on, where `get_buffers` shows their slots."""
        (slots,) = self.impl.get_cache_block_ids(request.request_id, LENGTH_MAX)
        names = self.model.names(request.tokens)[begin:]
        places = np.arange(begin, len(request.tokens))
        rows = torch.tensor([slots[place // self.unit] for place in places], device=self.where)
        inside = torch.tensor(places % self.unit, device=self.where)
        for layer in range(LAYERS):
            memory = self.impl.get_primary_pool_data(layer)
            buffers = memory.view(memory.shape[0], 2, self.unit, KV_HEADS, HEAD_SIZE)
            for side in (0, 1):
                buffers[rows, side, inside] = self.model.sides[layer, side, names]

    def _compare(self, batch: Sequence[Request], queries: int) -> None:
        table = np.zeros((1, len(batch), 2, self.impl.max_blocks_per_seq), np.int32)
        self.impl.copy_batch_block_offsets(table, [each.request_id for each in batch], 1, 0)
        names = [self.model.names(each.tokens) for each in batch]
        for layer in range(LAYERS):
            found = self._paged(layer, names, table[0, :, :, :] + layer * 2, queries)
            for row, own in enumerate(names):
                wanted = self.model.dense(layer, own, queries)
                torch.testing.assert_close(found[row].float(), wanted, atol=TOLERANCE, rtol=TOLERANCE)
                self.compared += 1

    def _paged(self, layer: int, names: Sequence[Sequence[int]], offsets: Any, queries: int) -> Any:
        """FlexAttention over the whole pool as it lies: [1, heads, tokens of all pages, size], V one page behind K."""
        rows = self.impl.get_unique_primary_pool().view(-1, KV_HEADS, HEAD_SIZE)
        keys, values = (each.transpose(0, 1)[None] for each in (rows[: -self.unit], rows[self.unit :]))
        lengths = torch.tensor([len(own) for own in names], device=self.where)
        pages = PagedAttention(keys.shape[2] // self.unit, self.unit, len(names), self.where)
        for row, own in enumerate(names):
            held = -(-len(own) // self.unit)
            assert (offsets[row, 1, :held] == offsets[row, 0, :held] + 1).all()
            mine = torch.tensor(offsets[row, 0, :held], dtype=torch.int64, device=self.where)
            pages.page_table[row, :held] = mine
            pages.physical_to_logical[row, mine] = torch.arange(held, device=self.where)

        def causal(b: Any, _head: Any, q: Any, kv: Any) -> Any:
            return kv <= lengths[b] - queries + q

        longest = -(-max(len(own) for own in names) // self.unit) * self.unit
        mask = create_block_mask(
            causal, len(names), None, queries, longest, device=self.where, BLOCK_SIZE=(128, self.unit)
        )
        asked = torch.stack([self.model.queries[layer, own[-queries:]].transpose(0, 1) for own in names])
        return self.attend(asked, keys, values, block_mask=pages.convert_logical_block_mask(mask), enable_gqa=True)


def keywords(blocks: int, host: int, tokens_per_block: int, stream: int) -> dict[str, Any]:
    return {
        "num_kv_heads_per_layer": [KV_HEADS] * LAYERS,
        "size_per_head": HEAD_SIZE,
        "tokens_per_block": tokens_per_block,
        "blocks_per_window": {LENGTH_MAX: (blocks, host)},
        "max_num_sequences": 8,
        "max_beam_width": 1,
        "max_attention_window_vec": [LENGTH_MAX],
        "temp_attention_window_inputs": None,
        "dtype": SimpleNamespace(name="HALF"),
        "sink_token_length": 0,
        "stream": stream,
        "max_sequence_length": LENGTH_MAX,
        "enable_block_reuse": True,
        "onboard_blocks": True,
    }


@contextmanager
def serving(blocks: int, host: int, tokens_per_block: int) -> Iterator[Server]:
    """On the GPU that torch sees, else on the simulated device."""
    given = {"blocks": blocks, "host": host, "tokens_per_block": tokens_per_block}
    if torch.cuda.is_available():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            server = Server(native.open_device("cuda"), stream.cuda_stream, **given)
            yield server
            stream.synchronize()
            server.impl.release_pools()
        return
    device = native.open_device("cpu")
    number = device.create_stream()
    with on_stream(device, number):
        server = Server(device, number, **given)
        yield server
        server.impl.release_pools()
