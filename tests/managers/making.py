"""Our manager as upstream's constructor makes it, on a simulated device, and bound requests for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from tests.bound import load
from tests.bound.making import make_request, manager_keywords, name_of
from trtllm_kvfix import native
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.staging import on_stream


def keywords(era: Any, blocks: int = 16, host: int = 0, **changes: Any) -> dict[str, Any]:
    """The keywords that the constructor of 1.2 passes."""
    given: dict[str, Any] = {
        "num_kv_heads_per_layer": [2, 1, 2],
        "size_per_head": 8,
        **manager_keywords(era, blocks, host),
        "onboard_blocks": True,
        "cache_type": era.CacheType.SELF,
        "enable_partial_reuse": True,
        "copy_on_partial_reuse": True,
        "kv_connector_manager": None,
        "enable_indexer_k_cache": False,
        "indexer_k_cache_quant_block_size": 128,
        "indexer_k_cache_index_head_dim": 0,
    }
    return given | changes


@cache
def python_half(era: Any) -> Any:
    """Upstream's subclass of the bound request: images have their data there alone."""

    class Request(era.LlmRequest):  # type: ignore[misc]
        def __init__(self, *, py_multimodal_data: Any = None, **given: Any) -> None:
            self.py_multimodal_data = py_multimodal_data
            super().__init__(**given)

    return Request


class Bench:
    """A manager and whoever calls it as upstream's loop does."""

    def __init__(self, era: Any, device: native.Device, stream: int, **given: Any) -> None:
        self.era = era
        self.device = device
        self.stream = stream
        passed = keywords(era, stream=stream, **given)
        if name_of(era) == "D":
            del passed["temp_attention_window_inputs"]
        self.impl = NativeKvCache(**passed)
        self.impl.allocate_pools(False)

    def request(self, request_id: int, tokens: Sequence[int], **given: Any) -> Any:
        return make_request(self.era, request_id, tokens, base=python_half(self.era), **given)

    def prepare(self, contexts: Sequence[Any] = (), generations: Sequence[Any] = ()) -> None:
        self.impl.sync_transfer_manager_with_buffer_manager()
        for each in contexts:
            if each.is_first_context_chunk:
                self.impl.add_sequence(each.request_id, each.prompt_len, 1, each)
        for each in generations:
            self.impl.add_token(each.request_id)
        self.impl.refresh_blocks()

    def computed(self, request: Any, token: int = 9_000) -> None:
        """The forward of its last chunk has ended, and its first token is there."""
        request.move_to_next_context_chunk()
        request.state = self.era.LlmRequestState.GENERATION_IN_PROGRESS
        request.add_new_token(token, 0)

    def served(self, request_id: int, tokens: Sequence[int], **given: Any) -> None:
        """One request from its arrival to its end, which leaves its prompt behind."""
        request = self.request(request_id, tokens, **given)
        self.prepare([request])
        self.computed(request)
        self.impl.remove_sequence(request_id, request, False)
        self.impl.store_context_blocks(request)

    def cached(self, tokens: Sequence[int]) -> int:
        """Leading tokens of a prompt that a request would find."""
        return self.impl.core.analyze_prefix_reuse(native.SequenceRequest(99, list(tokens))).tokens

    def reused(self, request: Any) -> int:
        return int(request.context_current_position)


@contextmanager
def bench(era_name: str = "S", **given: Any) -> Iterator[Bench]:
    era = getattr(load(), era_name)
    device = native.open_device("cpu")
    stream = device.create_stream()
    with on_stream(device, stream):
        made = Bench(era, device, stream, **given)
        yield made
        made.impl.core.check_invariants()
        made.impl.release_pools()
