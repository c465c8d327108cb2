"""Words in which the books (`native.FillBooks`) are told what happens to blocks."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Occasion = Literal["filled", "reused", "returned", "freed", "live"]
NOBODY = -1  # the request that filled a block, where none was seen to, or that reuses it, where none does
NOWHERE = -1  # the slot of a block that a window has passed


class Write(NamedTuple):
    """One request's part of a step that has been enqueued."""

    request: int
    # Of its blocks, from that of the first written position on; None: all of them are known.
    slots: Sequence[int] | None
    begin: int  # the first position that the step writes
    end: int  # the one behind the last
    accepted: int  # positions below are kept for certain: less than `end` where drafts may be rewound
