"""A prompt that is not computed to its end, or that a connector has brought, and a request that shares it (H8)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from trtllm_kvfix.hazards.build import CountedRequests
from trtllm_kvfix.hazards.ground import Ground, NothingToShow
from trtllm_kvfix.hazards.small import TOKENS_PER_BLOCK, Requests
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import Upstream

PROMPT = range(100, 100 + 7 * TOKENS_PER_BLOCK + 1)
CHUNK = 2 * TOKENS_PER_BLOCK


def two_with_a_prompt(requests: Requests, computed: int) -> tuple[Any, Any]:
    """A second request comes when `computed` tokens of the prompt that both have are computed."""
    first, second = requests.make(1, PROMPT, chunk=computed), requests.make(2, PROMPT)
    requests.step([first])
    requests.step([second])
    return first, second


def shares_a_prompt(ground: Ground, up: Upstream) -> str | None:
    requests = CountedRequests(ground, up, blocks=32)
    first, second = two_with_a_prompt(requests, CHUNK)
    reused = int(second.prepopulated_prompt_len)
    if reused > CHUNK:
        return f"{reused} tokens were reused, of which {CHUNK} had been computed"
    first.context_chunk_size = first.context_remaining_length
    requests.step([first])
    for request in (second, first):
        requests.finish(request)
    return requests.released()


class Answering:
    """In the place of V2's connector manager: it answers with a prefix as long as it was told to, and loads nothing."""

    prefix_reservations_enabled = False

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}  # of the prefixes, by request
        self.used: dict[int, int] = {}  # tokens of the answer

    def query_num_new_matched_tokens(self, request: Any, begin: int) -> tuple[int, bool]:
        return max(0, self.ends.get(request.py_request_id, 0) - begin), False

    def commit_new_matched_tokens(self, request: Any, tokens: int, is_async: bool) -> None:  # noqa: ARG002  upstream's
        self.used[request.py_request_id] = tokens

    def should_add_sequence(self, request: Any) -> bool:  # noqa: ARG002  upstream's
        return True

    def _nothing(self, *_: Any, **__: Any) -> None:
        """There is nothing to load, to save or to let go of."""

    update_state_after_alloc = build_scheduler_output = reset_request_state = _nothing
    release_unstarted_prefix_loads = release_prefix_reservation = has_pending_load = get_prefix_reservation = _nothing


class Served(Requests):
    """Requests of V2, whose first layer has a window of two blocks."""

    def __init__(self, stream: Any, kind: Any) -> None:
        super().__init__(stream, blocks=64, kind=kind, max_attention_window=[WINDOW, LENGTH_MAX])
        self.cache.kv_connector_manager = self.connector = Answering()

    def computed(self, request_id: int, prompt: Sequence[int], prefix: int = 0) -> int:
        """Computes a prompt in one chunk, behind a prefix that the connector has, and ends the request. Returns what
        was reused."""
        request = self.make(request_id, prompt)
        self.connector.ends[request_id] = prefix
        if not (self.cache.prepare_context(request) and self.cache.resize_context(request, len(prompt))):
            raise RuntimeError("the cache has no room for a request")
        reused = int(self.cache.kv_cache_map[request_id].num_committed_tokens)
        request.context_chunk_size = request.context_remaining_length
        batch = self.admit([request])
        request.move_to_next_context_chunk()
        self.cache.update_context_resources(batch)
        self.finish(request)
        return reused


PASSES = "_resize_for_connector_prefix"  # of a V2 that asks connectors
WINDOW, PREFIX, LENGTH_MAX = 2 * TOKENS_PER_BLOCK, 7 * TOKENS_PER_BLOCK, 10 * TOKENS_PER_BLOCK


def reused_behind(served: Served, prefix: int, begun: int = 0) -> int:
    """A connector brings a prefix of a prompt, of which `begun` tokens are in the cache. Another prompt shares its
    first two blocks. A prefix that is longer than a window passes them, and then they are neither computed nor loaded.
    """
    if begun:
        served.computed(1, [*PROMPT[:begun], *range(begun)])
    served.computed(2, PROMPT, prefix)
    return served.computed(3, [*PROMPT[:WINDOW], 1])


def passes_what_nobody_wrote(begun: int, ground: Ground, up: Upstream) -> str | None:
    kind = up.attribute(up.v2_module, "KVCacheManagerV2")
    if not hasattr(kind, PASSES):
        raise NothingToShow("no connector answers KVCacheManagerV2 with a prefix")
    served = Served(ground.stream(), kind)
    reused = reused_behind(served, PREFIX, begun)
    if not served.connector.used[2]:
        return "the connector's prefix was not used"
    return f"{reused} tokens were reused, of which {begun} had been written" if reused > begun else None


SCENARIOS = (
    Scenario("chunks-shared", "computed-blocks", shares_a_prompt, may_be_right=True),
    Scenario("prefix-passes", "connector-prefixes", partial(passes_what_nobody_wrote, 0)),
    Scenario("prefix-passes-part", "connector-prefixes", partial(passes_what_nobody_wrote, 3 * TOKENS_PER_BLOCK // 2)),
)
