"""Lookups: what the store has of a prompt, asked before upstream's scheduler sees the request.

    arrives --> asked --> held back until the answer, or for as long as it is patient --> scheduled, then fetched

Upstream asks a connector once, when a request has its blocks, and that answer is final: none can be "ask me later". So
the store is asked before, and the executor's thread goes on meanwhile.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Link, RemoteStore
from trtllm_kvfix.offload.remote.keys import Given
from trtllm_kvfix.offload.remote.messages import OBJECTS_MAX, Look
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.ranks import Ranks

FUSE = "offload-remote"
OBJECT_S = 20e-6  # for each object (a block of one rank) that the store is asked about, a prompt waits so much longer


@dataclass
class Lookup:
    """A question about a prompt, and its answer."""

    objects: int
    until: float  # the request waits so long, by the clock of `monotonic`; 0: it does not wait
    given: Given = field(default_factory=Given)
    found: int | None = None  # leading blocks that all ranks have in the store
    is_over: bool = False  # there is an answer, or there will be none
    is_used: bool = False

    def is_waited_for(self, now: float) -> bool:
        return not self.is_over and now < self.until


class Lookups:
    """Those of active requests. The executor's thread of rank 0 uses it."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._numbers = count(1)
        self._of: dict[int, Lookup] = {}  # by request
        self._asked: dict[int, Lookup] = {}  # by number: those without an answer

    def __len__(self) -> int:
        return len(self._of)

    def of(self, request_id: int) -> Lookup | None:
        return self._of.get(request_id)

    def keep(self, request_ids: Collection[int]) -> None:
        """Forget those of all other requests."""
        for request_id in self._of.keys() - request_ids:
            del self._of[request_id]

    def forget_all(self) -> None:
        self._of.clear()

    def may_ask(self, store: RemoteStore) -> bool:
        """Whether the store answers now. If a call of it takes longer than any should, nobody waits for the next."""
        return store.is_up and store.lookups_wait_s() < self._wait_s + OBJECT_S * OBJECTS_MAX

    def ask(self, store: RemoteStore, request_id: int, look: Look, patience_s: float) -> None:
        """The answers come in the order of the questions, so each waits for those before it, too."""
        lookup = Lookup(len(look.tokens) // look.tokens_per_block * store.ranks, 0.0)
        if patience_s:
            objects = lookup.objects + sum(each.objects for each in self._asked.values())
            lookup.until = monotonic() + min(self._wait_s + OBJECT_S * objects, patience_s)
        numbered = look._replace(number=next(self._numbers))
        if store.look(numbered):
            counters.offload_remote_lookups.add()
            self._of[request_id] = self._asked[numbered.number] = lookup

    def take_answers(self, store: RemoteStore) -> None:
        for answer in store.take_found():
            lookup = self._asked.pop(answer.number, None)
            if lookup is None:  # another scheduler side of this process has asked
                continue
            lookup.is_over = True
            if not answer.error:
                lookup.given.keys, lookup.found = answer.keys, answer.blocks


class HeldBack:
    """Keeps requests from upstream's scheduler while they wait for the store's answer. The others overtake them.

    Rank 0 decides, and tells the others in each iteration in which a request is new or waits. The executor's thread of
    each rank uses it.
    """

    def __init__(self, link: Link, ranks: Ranks) -> None:
        self._link, self._ranks = link, ranks
        self._shown: set[int] = set()  # active requests that wait no more

    def shown(self, active: Sequence[Any]) -> Sequence[Any]:
        """Return the active requests that the scheduler may choose from. They are the same on every rank."""
        try:
            self._shown.intersection_update([request.py_request_id for request in active])
            undecided = [one for one in active if one.is_context_init_state and one.py_request_id not in self._shown]
        except Exception as error:  # on all ranks alike, as upstream's requests are
            fuse.of(FUSE).fault(error)
            return active
        if not undecided:
            return active
        waiting = set(self._ranks.gather(self._link.hold_back(undecided, active))[0])
        self._shown.update(one.py_request_id for one in undecided if one.py_request_id not in waiting)
        return [request for request in active if request.py_request_id not in waiting] if waiting else active
