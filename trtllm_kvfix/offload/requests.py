"""What the scheduler side knows of the live requests: their tokens, their blocks, and what is under way for each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from trtllm_kvfix.blocks.host_index import Pins, Tokens
from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.offload.layer_groups import blocks_by_group, flat


@dataclass
class PendingLoad:
    """Blocks `first` and on of a prompt, pinned in the host tier until they have been loaded, or nobody wants them."""

    pins: Pins
    first: int
    position: int  # tokens that the device had
    tokens: int  # that the load adds
    job: int | None = None  # once the destinations are known


@dataclass
class LiveRequest:
    request_id: int
    identity: Identity
    tokens: list[int]
    blocks: list[list[int]] = field(default_factory=list)  # of the device: for each layer group, in order of position
    # Of a request that comes back after preemption upstream may tell what it adds to blocks that are gone. Its list is
    # taken again when it is told as a new one, or ends; until then nothing is appended to this one.
    frozen: bool = False
    grown: int = 0  # blocks that it may have reached since, while it was frozen
    priorities: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose kernels have been given to the device
    covered: int = 0  # blocks that are here, on their way, or not worth storing
    jobs: set[int] = field(default_factory=set)  # stores that have not ended
    load: PendingLoad | None = None

    def take(self, tokens: Iterable[int], blocks: list[list[int]]) -> None:
        """What upstream says is all."""
        self.tokens, self.blocks, self.frozen = list(tokens), blocks, False

    def extend(self, tokens: Iterable[int], blocks: list[list[int]], priorities: Iterable[int] = ()) -> None:
        """`priorities` are those of the added blocks, or none where the request has no retention ranges."""
        if self.frozen:
            return
        self.tokens.extend(tokens)
        self.priorities.extend(priorities)
        self.blocks = self.blocks or [[] for _ in blocks]
        for known, added in zip(self.blocks, blocks, strict=True):
            known.extend(added)

    @property
    def allocated(self) -> int:
        """Blocks that every layer group has."""
        return min(map(len, self.blocks), default=0)

    def whole_blocks(self, tokens_per_block: int) -> int:
        """Blocks whose every token is known and computed."""
        return min(min(self.computed, len(self.tokens)) // tokens_per_block, self.allocated)

    def part(self, first: int, end: int) -> tuple[int, ...]:
        """Blocks first to end of one layer group, then of the next, as jobs have them."""
        return tuple(chain.from_iterable(group[first:end] for group in self.blocks))

    def prefix(self, blocks: int, tokens_per_block: int) -> Tokens:
        return np.array(self.tokens[: blocks * tokens_per_block], np.int32)


def added_blocks(data: Any) -> list[list[int]]:
    """What a report adds, for each layer group. Upstream leaves the flat list empty where there are several."""
    by_group = getattr(data, "new_block_ids_by_layer_group", None) or ()
    return blocks_by_group(by_group) if len(by_group) > 1 else [flat(data.new_block_ids)]


def tokens_computed(request: Any, live: LiveRequest) -> int:
    """Of a request that ends: in its prompt it says how far it came, after that it is all but the last token."""
    position = getattr(request, "context_current_position", None)
    prompt = getattr(request, "prompt_len", None)
    if position is None or prompt is None:
        return live.computed
    return position if position < prompt else len(live.tokens) - 1
