"""Lookups in the store, as the porter makes them: for many prompts at a time, and in parts."""

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from trtllm_kvfix.log import described
from trtllm_kvfix.offload.remote.keys import keys_behind, object_name
from trtllm_kvfix.offload.remote.messages import OBJECTS_MAX, Look, LookAnswer

FIRST_BLOCKS, STEP_GROWS = 64, 8  # of a prompt: most have none in the store, and then these are all that is asked
FRESH_S = 10.0  # blocks that were just asked about need no other question to stay in the store
FRESH_MAX = 4096  # prompts


@dataclass
class Looking:
    """A prompt that the store is being asked about."""

    look: Look
    keys: list[bytes]
    blocks: int = 0  # leading ones that are there
    is_fresh: bool = False  # the first ones were there a moment ago
    step: int = FIRST_BLOCKS  # blocks in the next call

    @property
    def next_keys(self) -> list[bytes]:
        return self.keys[self.blocks : self.blocks + self.step]


class LookQueue:
    """Prompts that wait for the store's word. A call asks about the next blocks of as many as fit, and a prompt is done
    with its first block that is not there: a long one holds up nobody, and one that is new costs little.

    A question renews what it is about, so that the store does not take it for unused. One thread calls the store.
    """

    def __init__(
        self, ranks: int, exist: Callable[[Sequence[str]], list[bool]], tell: Callable[[LookAnswer], None]
    ) -> None:
        self._ranks, self._exist, self._tell = ranks, exist, tell
        self._new: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._open: deque[Looking] = deque()
        self._fresh: dict[bytes, float] = {}  # last key of leading blocks that are there -> when the store said so
        threading.Thread(target=self._run, name="looks", daemon=True).start()

    def add(self, look: Look) -> None:
        self._new.put(look)

    def _run(self) -> None:
        while True:
            if not self._open:
                self._begin(self._new.get())
            with suppress(queue.Empty):
                while True:
                    self._begin(self._new.get_nowait())
            asked = self._next()
            try:
                self._ask(asked)
            except Exception as error:
                self._fresh.clear()  # a master that comes back has forgotten all
                for looking in asked:
                    self._tell(LookAnswer(looking.look.number, error=described(error)))

    def _begin(self, look: Look) -> None:
        keys = keys_behind(look.start, 0, look.tokens, look.tokens_per_block, look.spans)
        looking = Looking(look, keys)
        if look.held and monotonic() - self._fresh.get(keys[look.held - 1], -math.inf) < FRESH_S:
            looking.blocks, looking.is_fresh = look.held, True
        self._open.append(looking)

    def _next(self) -> list[Looking]:
        """Whose turn it is: at least one, and as many as a call may ask about."""
        turn, room = [self._open.popleft()], OBJECTS_MAX // self._ranks
        turn[0].step = max(min(turn[0].step, room), 1)
        room -= len(turn[0].next_keys)
        while self._open and len(self._open[0].next_keys) <= room:
            turn.append(self._open.popleft())
            room -= len(turn[-1].next_keys)
        return turn

    def _ask(self, turn: list[Looking]) -> None:
        ranks = range(self._ranks)
        names = [[object_name(key, rank, self._ranks) for key in each.next_keys for rank in ranks] for each in turn]
        there = iter(self._exist([name for of_one in names for name in of_one]))
        for looking, of_one in zip(turn, names, strict=True):
            found = [next(there) for _ in of_one]
            looking.blocks += (found.index(False) if False in found else len(found)) // self._ranks
            looking.step *= STEP_GROWS
            if False in found or looking.blocks == len(looking.keys):
                self._answer(looking)
            else:
                self._open.append(looking)

    def _answer(self, looking: Looking) -> None:
        look, blocks = looking.look, looking.blocks
        if not looking.is_fresh:
            self._note_fresh(looking.keys[end - 1] for end in {blocks, min(look.held, blocks)} - {0})
        self._tell(LookAnswer(look.number, b"".join(looking.keys), blocks))

    def _note_fresh(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._fresh.pop(key, None)  # the newest is the last
            self._fresh[key] = monotonic()
        while len(self._fresh) > FRESH_MAX:
            del self._fresh[next(iter(self._fresh))]
