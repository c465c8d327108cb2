"""State that both sides of the connector share within a process.

Upstream makes the sides from the same arguments object, in two threads, and passes nothing from the worker side to the
scheduler side."""

import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

from trtllm_kvfix.offload.ledger import Ledger
from trtllm_kvfix.offload.plan import Late
from trtllm_kvfix.offload.weights import Weights


class RemoteStore(Protocol):
    """The questions that the scheduler side asks the store."""

    root: bytes  # of the keys of all blocks
    block_bytes: int  # of each rank

    @property
    def is_up(self) -> bool: ...
    def look(self, keys: tuple[bytes, ...], wait_s: float) -> list[bool] | None: ...


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
