"""State that both sides of the connector share within a process.

Upstream makes the sides from the same arguments object, in two threads, and passes nothing from the worker side to the
scheduler side."""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trtllm_kvfix.offload.ledger import Ledger
from trtllm_kvfix.offload.plan import Late
from trtllm_kvfix.offload.weights import Weights

if TYPE_CHECKING:
    from trtllm_kvfix.offload.remote.messages import Look, LookAnswer


class RemoteStore(Protocol):
    """The questions that the scheduler side asks the store, and the answers. None of it waits."""

    root: bytes  # of the keys of all blocks
    block_bytes: int  # of each rank
    ranks: int

    @property
    def is_up(self) -> bool: ...
    def look(self, look: "Look") -> bool:
        """Ask. False if there is no store now, and so no answer."""
        ...

    def take_found(self) -> "list[LookAnswer]":
        """The answers that have come."""
        ...

    def lookups_wait_s(self) -> float:
        """How long the store has answered none of those that wait; 0 if none does."""
        ...


class Link:
    """Each attribute but the ledger and the weights has one writer; both sides are called by the executor's thread."""

    def __init__(self) -> None:
        self.slots: int | None = None  # of the host pool, the same on every rank; set once it is known
        self.store: RemoteStore | None = None  # the remote tier's, once the worker side has it
        self.ledger = Ledger()
        self.weights = Weights()
        # A question to the scheduler side of this process, if there is one.
        self.plan_late: Callable[[Collection[int]], Late] = lambda _: Late()  # requests that wait for an untold load
        self.request_over: Callable[[int, bool], None] = lambda *_: None  # request, whether its blocks stay
        # Requests that wait to start, and all that are active -> the ids of those that must not start yet.
        self.hold_back: Callable[[Sequence[Any], Sequence[Any]], list[int]] = lambda *_: []
        self.load_not_awaited: Callable[[int], None] = lambda _: None  # request


_links: dict[int, tuple[Any, Link]] = {}  # by the id of the arguments, which are kept alive
_lock = threading.RLock()  # a garbage collection may call back into this module


def link_of(llm_args: Any) -> Link:
    with _lock:
        _, link = _links.setdefault(id(llm_args), (llm_args, Link()))
        return link


def unlink(args_id: int) -> None:
    with _lock:
        _links.pop(args_id, None)
