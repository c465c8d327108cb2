"""A thread that pins blocks while the executor's is in the manager (H4)."""

import threading
from collections.abc import Callable
from typing import Any

from trtllm_kvfix.hazards.build import CountedRequests
from trtllm_kvfix.hazards.ground import PATIENCE_S, Ground, NothingToShow, Unavailable
from trtllm_kvfix.hazards.hazard import Scenario
from trtllm_kvfix.hazards.small import TOKENS_PER_BLOCK
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
    pinning = _Pinning(lambda: getattr(impl, PIN)(blocks))
    connector.asked = pinning.begin
    second = requests.make(2, range(3000, 3000 + 2 * T))
    requests.step([second])
    if not pinning.has_begun:
        raise Unavailable("the bound manager did not ask its connector")
    pinning.end()
    if pinning.came_in:
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


class _Pinning:
    """In a thread of its own, begun while another is in the manager."""

    def __init__(self, pin: Callable[[], object]) -> None:
        self._pin = pin
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: Exception | None = None
        self.has_begun = self.came_in = False

    def begin(self) -> None:
        """Returns when the call is over, or has been kept waiting."""
        if self.has_begun:
            return
        self.has_begun = True
        self._thread.start()
        self._thread.join(PATIENCE_S)
        self.came_in = not self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(LIMIT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"{PIN} did not end within {LIMIT_S:g} s of the admission")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._pin()
        except Exception as error:
            self._error = error


SCENARIOS = (Scenario("pins", "concurrent-pins", admits_alone),)
