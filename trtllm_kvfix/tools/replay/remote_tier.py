"""The offload connector's remote tier as a replay sees it: a store behind the host tier, in which every fetch is worth
it and transfers take no time. It evicts the block that was put or asked for the longest ago."""

from collections import OrderedDict
from collections.abc import Callable

from trtllm_kvfix.offload.remote.keys import KeyChain
from trtllm_kvfix.offload.remote.puts import staging_slots
from trtllm_kvfix.tools.replay.host_tier import ConnectorTier, Known, Live

MIN_REUSE_BLOCKS = 4  # as the connector's default


class Store:
    """Keys of blocks, up to a number of them."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def put(self, keys: list[bytes]) -> None:
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._blocks:
            self._keys.popitem(last=False)

    def leading(self, keys: list[bytes]) -> int:
        """Count the leading keys that the store has, up to the first that it lacks. They are the newest from now on."""
        for at, key in enumerate(keys):
            if key not in self._keys:
                return at
            self._keys.move_to_end(key)
        return len(keys)


class RemoteTier(ConnectorTier):
    def __init__(
        self,
        slots: int,
        tokens_per_block: int,
        known: Callable[[int], Known],
        blocks_remote: int,
        admission: str = "adaptive",
    ) -> None:
        self._staging = self._staging_free = staging_slots(slots)
        super().__init__(slots - self._staging, tokens_per_block, known, admission)
        self._store_of_all = Store(blocks_remote)
        self._chains: dict[int, KeyChain] = {}  # by sequence of the index

    def _more(self, live: Live, held: int, limit: int, first: int) -> int:
        here = max(held, first)
        keys = self._keys(live)[held:limit]
        end = held + self._store_of_all.leading(keys) if limit - here >= MIN_REUSE_BLOCKS else held
        if end - here < MIN_REUSE_BLOCKS:
            return held
        claim = self._index.claim(live.sequence, end, reused=True)
        if claim is None:
            return held
        self._index.commit(claim.slots)
        return claim.first + len(claim.slots)

    def _stored_in(self, live: Live, first: int, count: int) -> None:
        self._store_of_all.put(self._keys(live)[first : first + count])

    def _left_out(self, live: Live, first: int, end: int) -> int:
        count = min(end - first, self._staging_free)
        self._staging_free -= count
        self._stored_in(live, first, count)
        return count

    def _end_transfers(self) -> None:
        super()._end_transfers()
        self._staging_free = self._staging

    def _ended(self, live: Live) -> None:
        self._chains.pop(live.sequence, None)

    def _keys(self, live: Live) -> list[bytes]:
        """Keys of the blocks that the index has."""
        size = self._tokens_per_block
        chain = self._chains.setdefault(live.sequence, KeyChain(b"", live.known.identity, size))
        chain.extend(live.known.tokens[len(chain.keys) * size : live.indexed * size])
        return chain.keys
