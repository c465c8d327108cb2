"""A thread that pins blocks while the executor's is in the manager (H4)."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from trtllm_kvfix.hazards.build import CountedRequests
from trtllm_kvfix.hazards.ground import PATIENCE_S, Ground, NothingToShow, Unavailable
from trtllm_kvfix.hazards.small import TOKENS_PER_BLOCK
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import BINDINGS, Upstream

T = TOKENS_PER_BLOCK
# It takes no lock of upstream's, unlike the look-up by hash, which waits for the tree's.
PIN = "pin_blocks_by_id"
LIMIT_S = 60.0


def admits_alone(ground: Ground, up: Upstream) -> str | None:
    """An admission calls its connector from inside the manager; until the connector answers, no other thread may come
    in."""
    if not up.binds(PIN):
        raise NothingToShow("nothing is bound for other threads to call")
    connector = _connector(up)
    requests = CountedRequests(ground, up, blocks=32, kv_connector_manager=connector)
    requests.cache.kv_connector_manager = None  # C++ asks; the connector's Python interface is not needed
    impl = requests.cache.impl
    cached = requests.make(1, range(1000, 1000 + 3 * T + 1))
    requests.step([cached])
    blocks = list(requests.cache.get_cache_indices(cached))[:3]
    requests.finish(cached)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvfix-hazard-pins")
    pinned: list[Future[object]] = []
    came_in = False

    def pin_meanwhile() -> None:
        """Returns when the other thread's call is over, or has been kept waiting. An admission may ask twice."""
        nonlocal came_in
        if not pinned:
            pinned.append(thread.submit(getattr(impl, PIN), blocks))
            came_in = bool(wait(pinned, PATIENCE_S).done)

    connector.asked = pin_meanwhile
    second = requests.make(2, range(3000, 3000 + 2 * T))
    requests.step([second])
    if not pinned:
        raise Unavailable("the bound manager did not ask its connector")
    if not wait(pinned, LIMIT_S).done:
        raise TimeoutError(f"{PIN} did not end within {LIMIT_S:g} s of the admission")
    pinned[0].result()
    if came_in:
        return f"a thread pinned {len(blocks)} blocks while an admission was inside the manager"
    impl.unpin_blocks_by_id(blocks)
    requests.finish(second)
    return requests.released()


def _connector(up: Upstream) -> Any:
    bound: Any = up.attribute(BINDINGS, "KvCacheConnectorManager")
    if bound is None:
        raise Unavailable("this TensorRT-LLM has no KvCacheConnectorManager, from which one looks into an admission")

    class Connector(bound):  # type: ignore[misc]
        """Has nothing to load."""

        asked: Callable[[], None] | None = None

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
            del request, num_computed_tokens
            if self.asked is not None:
                self.asked()
            return 0

    return Connector()


SCENARIOS = (Scenario("pins", "concurrent-pins", admits_alone),)
