"""What the two sides of the connector in one process tell each other. Upstream makes them from the same arguments
object, in two threads, and gives the scheduler side no word from the worker's."""

import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

from trtllm_kvfix.offload.ledger import Ledger
from trtllm_kvfix.offload.plan import Late


class RemoteStore(Protocol):
    """What the scheduler side asks of the store itself."""

    root: bytes  # of the keys of all blocks
    block_bytes: int  # of each rank

    @property
    def is_up(self) -> bool: ...
    def look(self, keys: tuple[bytes, ...], wait_s: float) -> list[bool] | None: ...


class Link:
    """Each attribute but the ledger has one writer; both sides are called by the executor's thread."""

    def __init__(self) -> None:
        self.slots: int | None = None  # of the host pool, the same on every rank; set once it is known
        self.store: RemoteStore | None = None  # of the remote tier, once the worker side has it
        self.ledger = Ledger()
        # Asked of the scheduler side of this process, if it has one.
        self.plan_late: Callable[[Collection[int]], Late] = lambda _: Late()  # requests that wait for an untold load
        self.request_over: Callable[[int, bool], None] = lambda *_: None  # request, whether its blocks stay


_links: dict[int, tuple[Any, Link]] = {}  # by identity of the arguments, which are kept so that it stays theirs
_lock = threading.RLock()  # a collection of garbage may come back here


def link_of(llm_args: Any) -> Link:
    with _lock:
        _, link = _links.setdefault(id(llm_args), (llm_args, Link()))
        return link


def unlink(args_id: int) -> None:
    with _lock:
        _links.pop(args_id, None)
