"""The offload connector's host tier as a replay sees it: what its scheduler side decides, with transfers that end in
the iteration that begins them. TensorRT-LLM's own host tier is part of the block manager and needs nothing here."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from trtllm_kvfix.blocks.host_index import HostIndex, Pins, Tokens
from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.native import BlockManager


class Known(NamedTuple):
    """A request, with its prompt and its answer."""

    identity: Identity
    tokens: Tokens
    prompt_len: int

    @property
    def computed(self) -> int:
        """Tokens that it leaves behind: of the last one nothing is computed."""
        return len(self.tokens) - 1


class Found(NamedTuple):
    """What the host tier adds to what the GPU has of a prompt."""

    tokens: int = 0
    blocks: int = 0


class Counted(NamedTuple):
    """Blocks since the beginning."""

    stored: int
    loaded: int
    dropped: int


class HostTier(Protocol):
    """Asked by a replay, which names requests by their index."""

    def attach(self, manager: BlockManager) -> None:
        """The blocks of the GPU."""

    def find(self, index: int, tokens_found: int) -> Found:
        """Of a prompt that was admitted and of which the GPU has `tokens_found`. It is there in the next iteration."""

    def step(self, running: Sequence[tuple[int, int]]) -> None:
        """Who runs in this iteration, with the tokens that were computed before it."""

    def finish(self, indices: Sequence[int]) -> None:
        """Their blocks of the GPU are given back right after this."""

    def counted(self) -> Counted: ...


class ConnectorTier:
    """A prediction: the same index, and nothing of the connector's transfers."""

    def __init__(self, slots: int, tokens_per_block: int, known: Callable[[int], Known]) -> None:
        self._index = HostIndex(slots, tokens_per_block)
        self._tokens_per_block = tokens_per_block
        self._known = known
        self._live: dict[int, Known] = {}
        self._covered: dict[int, int] = {}  # blocks that are here or on their way, of those that have run
        self._numbers = count(1)
        self._stores: list[int] = []  # begun in this iteration
        self._pins: list[Pins] = []
        self._stored = self._loaded = 0

    def attach(self, manager: BlockManager) -> None:
        """What the GPU does with its blocks is nothing to this tier."""

    def find(self, index: int, tokens_found: int) -> Found:
        live = self._live[index] = self._known(index)
        prompt = live.tokens[: live.prompt_len]
        held = self._index.blocks_held(live.identity, prompt)
        first = tokens_found // self._tokens_per_block
        gained = held * self._tokens_per_block - tokens_found
        if held <= first or gained <= 0:
            return Found()
        self._pins.append(self._index.pin(live.identity, prompt, first, held))
        self._loaded += held - first
        return Found(gained, held - first)

    def step(self, running: Sequence[tuple[int, int]]) -> None:
        for index, computed in sorted(running, key=lambda one: one[0] in self._covered):  # the new ones first
            self._covered.setdefault(index, 0)
            self._store(index, computed)
        self._end_transfers()

    def finish(self, indices: Sequence[int]) -> None:
        waiting = list(indices)
        while waiting:
            waiting = [index for index in waiting if not self._store(index, self._live[index].computed)]
            self._end_transfers()
        for index in indices:
            del self._live[index], self._covered[index]

    def counted(self) -> Counted:
        return Counted(self._stored, self._loaded, self._index.blocks_dropped())

    def _store(self, index: int, computed: int) -> bool:
        """False: later, because another request has the same blocks on their way."""
        whole = computed // self._tokens_per_block
        if whole <= self._covered[index]:
            return True
        live = self._live[index]
        tokens = live.tokens[: whole * self._tokens_per_block]
        held, on_its_way = self._index.missing(live.identity, tokens)
        if on_its_way:
            return False
        self._covered[index] = whole
        job = next(self._numbers)
        claim = self._index.begin_store(job, live.identity, tokens) if held < whole else None
        if claim is not None:
            self._stores.append(job)
            self._stored += len(claim.slots)
        return True

    def _end_transfers(self) -> None:
        for job in self._stores:
            self._index.end_store(job, arrived=True)
        for pins in self._pins:
            self._index.unpin(pins)
        self._stores.clear()
        self._pins.clear()
