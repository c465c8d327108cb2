"""Messages between an engine and its porter."""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.offload.remote.keys import Spans


class Spec(NamedTuple):
    """First message to a porter. It inherits the descriptors."""

    socket: int
    pool: int  # -1: it holds a segment, and carries nothing
    block_bytes: int
    slot_bytes: int  # from one slot of the pool to the next
    slots: int
    rank: int
    ranks: int
    master: str
    protocol: str
    host: str | None
    segment_bytes: int
    engine: int = 0  # the process that it ends with


OBJECTS_MAX = 16384  # that one call of the store asks about: others wait meanwhile


class Look(NamedTuple):
    """Question about a prompt: what are its blocks called, and how many of them, from the first one on, does every rank
    have?"""

    number: int
    start: bytes  # what the names of all its blocks follow from
    spans: Spans
    tokens_per_block: int
    tokens: NDArray[np.int32]  # of whole blocks
    held: int = 0  # leading blocks that the host tier has: of these alone, an answer may be some seconds old


class Put(NamedTuple):
    """Nothing writes the slots before the answer."""

    number: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]
    is_prompt: bool = False  # it goes before those that are not


class Get(NamedTuple):
    """Nothing reads or writes the slots before the answer."""

    number: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]


class Outcome(IntEnum):
    """The outcome of one block."""

    WHOLE = 0  # it is there: in the store, or in its slot and checked
    MISSING = 1  # the store does not have it
    FULL = 2  # the store has no room for it
    BAD = 3  # what came is not what was put
    FAILED = 4  # the store says so. Of a get: it may write the slot later
    LATE = 5  # it came when the store might have given its place to another one: its seal says whether it is whole


class Outcomes(NamedTuple):
    number: int
    outcomes: tuple[Outcome, ...]
    error: str = ""  # not empty: nothing is known of any block
    seconds: float = 0.0


class LookAnswer(NamedTuple):
    """The answer to a `Look`."""

    number: int
    keys: bytes = b""  # one behind the other
    blocks: int = 0
    error: str = ""  # not empty: nothing is known of any block


class CallOver(NamedTuple):
    """A call of the store has ended. There is one thread for each kind of message."""

    kind: str  # the name of the message's type


class StoreState(NamedTuple):
    """The porter's state. Without `is_up` nothing is asked of it."""

    is_up: bool
    text: str


Message: TypeAlias = Look | Put | Get
Reply: TypeAlias = Outcomes | LookAnswer | CallOver | StoreState
