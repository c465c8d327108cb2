"""The KV cache holds each slot's tokens, as the model that has run would have written and read them.

The value of a token's KV is named by all tokens up to it. A read of another value, or of nothing, is corruption. Copies
that the bound books announce are carried out between the batches where they lie.
"""

from dataclasses import dataclass, field
from typing import Any

Place = tuple[int, int, int]  # window, slot, offset in the block


@dataclass
class Step:
    """One request's part of one batch: where it stood, and what it computes."""

    request_id: int
    tokens: list[int]  # all that are known, up to `end`
    begin: int
    end: int
    slots: dict[int, list[int]] = field(default_factory=dict)  # by window, read from the table when the batch ran
    may_wait_for: frozenset[int] = frozenset()  # tokens that a connector loads


class Contents:
    def __init__(self, tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self.values: dict[Place, int] = {}
        self.host: dict[Place, int] = {}
        self.corrupt: list[str] = []
        self.reads = 0

    def transfer(self, kind: str, window: int, source: int, target: int) -> None:
        of = self.host if kind == "onboard" else self.values
        to = self.host if kind == "offload" else self.values
        for offset in range(self.tokens_per_block):
            to.pop((window, target, offset), None)
            if (window, source, offset) in of:
                to[window, target, offset] = of[window, source, offset]

    def run(self, step: Step) -> None:
        """Write the tokens that this step computes, then read everything up to them."""
        names = prefix_names(step.tokens)
        for window, slots in step.slots.items():
            first = max(0, step.end - window)
            for position in range(step.begin, step.end):
                self.values[self._place(window, slots, position)] = names[position]
            for position in range(first, step.begin):
                self.reads += 1
                found = self.values.get(self._place(window, slots, position))
                if found != names[position]:
                    what = "nothing" if found is None else "another prefix"
                    self.corrupt.append(f"request {step.request_id}: token {position} of window {window} reads {what}")
                    break

    def fill(self, window: int, slots: list[int], tokens: list[int], begin: int, end: int) -> None:
        """A connector writes what it has loaded. Where the cache has no block, there is nothing to write."""
        names = prefix_names(tokens)
        for position in range(begin, end):
            place = self._place(window, slots, position)
            if place[1] >= 0:
                self.values[place] = names[position]

    def _place(self, window: int, slots: list[int], position: int) -> Place:
        block, offset = divmod(position, self.tokens_per_block)
        return (window, slots[block] if block < len(slots) else -1, offset)


def prefix_names(tokens: list[int]) -> list[int]:
    names: list[int] = []
    name = 0
    for token in tokens:
        name = hash((name, token))
        names.append(name)
    return names


def announced(impl: Any) -> list[tuple[str, int, int, int]]:
    """The copies that the books have made since they were last asked."""
    return [(kind, window, source, target) for kind, window, source, target, _ in impl.witness_take_transfers()]
