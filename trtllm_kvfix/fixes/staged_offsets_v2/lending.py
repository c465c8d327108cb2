"""A copy reads the rows of a manager after the call has returned; until it has, the attributes that lead to the rows
are put away.

Each request's cache writes its own row, at many steps of an iteration. But every writer has asked the manager for its
table, for the caches that it keeps, or for the runtime that makes them. So these three attributes leave the manager,
and a descriptor of its class, which an attribute of the instance hides, answers in their place: it waits for the copy,
puts all three back and returns the one that was asked for. While nothing is lent, it costs nothing.

The lock of a `Lender` guards what it keeps, and is held over a wait for the copy and the look-up behind it; the GIL is
not held during that wait. What a call lends is known to its thread alone until the call returns, and then becomes the
borrower, under the lock. So whoever takes the attributes back meanwhile, such as a revert, takes nothing from the call;
a call that returns after a revert waits for its copy. The way is set outside the lock: between `begin` and `put_away`
nothing is put away, so no reader of an attribute comes here.
"""

import inspect
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from trtllm_kvfix.fixes.staged_offsets_v2.way import Way
from trtllm_kvfix.fixes.waits import finish
from trtllm_kvfix.forks import HomeProcess
from trtllm_kvfix.living import Living
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging import OffsetStager

TABLE = "host_kv_cache_block_offsets"
PUT_AWAY = (TABLE, "kv_cache_map", "impl")
LENDER = "_kvfix_lender"  # on the manager; goes with it


class Lender:
    """Tables and rows that one manager has lent."""

    def __init__(self, manager: Any, failed: Callable[[Exception], None]) -> None:
        self._manager = weakref.ref(manager)
        self._failed = failed
        self._lock = threading.RLock()
        self._home = HomeProcess()
        self._call = threading.local()  # `lent`: to whom the call that is on has lent
        self._borrower: OffsetStager | None = None  # who reads while the attributes are put away
        self.over = False  # its fix has been taken off, and nothing is put away any more
        self._kept: dict[str, Any] = {}
        self.way: Way | None = None  # of the last launch that lent

    def lends(self, table: Any) -> bool:
        manager = self._manager()
        return manager is not None and vars(manager).get(TABLE) is table

    def begin(self, mine: dict[str, Any]) -> None:
        """A call begins on the manager with these attributes: nothing is lent any more."""
        if self._borrower is not None or TABLE not in mine:  # another thread may be taking it back
            self.take_back()
        if self.way is not None and not self.way.is_from(mine.get(TABLE)):
            self.way = None

    def lend_to(self, stager: OffsetStager) -> None:
        self._call.lent = stager

    def put_away(self) -> None:
        lent: OffsetStager | None = vars(self._call).pop("lent", None)
        manager = self._manager()
        if lent is None or manager is None:
            return
        with self._lock:
            if self.over or self._borrower is not None:
                self._wait_for(lent)
                return
            self._borrower = lent
            for name in PUT_AWAY:  # one by one: should one be missing, the others are still known
                self._kept[name] = vars(manager).pop(name)

    def take_back(self) -> None:
        with self._lock:
            borrower, self._borrower = self._borrower, None
            if borrower is not None:
                self._wait_for(borrower)
            self._put_back()

    def end(self) -> None:
        with self._lock:
            self.over = True
            self.take_back()

    def find(self, manager: Any, name: str) -> Any:
        """Give the attributes back to upstream, and return this one. In one go: the next call may put them away. In a
        child of fork() no copy reads the rows, and another thread of the parent may have the lock."""
        if self._home.left():
            return self._kept[name] if name in self._kept else vars(manager)[name]
        with self._lock:
            if name in self._kept:
                self._give_back()
            return vars(manager)[name]

    def _give_back(self) -> None:
        """It raises nothing."""
        try:
            self.take_back()
        except Exception as error:
            self._failed(error)
            finish()
            self._put_back()

    def _put_back(self) -> None:
        manager, kept, self._kept = self._manager(), self._kept, {}
        for name, value in kept.items():
            vars(manager).setdefault(name, value)  # upstream may have set another meanwhile

    def __del__(self) -> None:
        """The manager is gone, and the table goes next."""
        with suppress(Exception):  # nobody is left to inform
            if self._borrower is not None and not self._home.left():
                self._borrower.settle()

    def _wait_for(self, borrower: OffsetStager) -> None:
        try:
            borrower.settle()
        except Exception as error:
            self._failed(error)
            finish()  # a kernel follows the copy, on the stream that the call was made on


class Lending:
    """Finds the lender of a call. A manager that keeps its attributes in another way has none, and after a fault, or at
    the end of the fix, no manager has one: then each call waits for its copy."""

    def __init__(self, tried: Fuse) -> None:
        self._tried = tried
        self._over = False
        self._lenders: Living[Lender] = Living()
        self._in_call = threading.local()

    def during(self, manager: Any) -> "Lender | None":
        """The manager's lender, with nothing lent; for the launches of this thread until `leave`. It raises nothing."""
        try:
            mine = vars(manager)
            lender: Lender | None = mine.get(LENDER)
            if self._over:
                lender = None
            elif lender is None or lender.over:  # that one was of a fix that has been taken off
                lender = self._made_for(manager)
            if lender is not None:
                lender.begin(mine)
        except Exception as error:
            self._failed(error)
            lender = None
        self._in_call.lender = lender
        return lender

    def _made_for(self, manager: Any) -> "Lender | None":
        if not _is_as_known(manager):
            return None
        lender = vars(manager)[LENDER] = Lender(manager, self._failed)
        self._lenders.add(lender)
        if self._over:  # since it was asked, so `end_all` may have missed this one
            lender.end()
        return lender

    def _failed(self, error: Exception) -> None:
        self._over = True
        self._tried.fault(error)

    def leave(self, lender: Lender) -> None:
        """The manager's method has returned. It raises nothing."""
        self._in_call.lender = None
        try:
            lender.put_away()
        except Exception as error:
            self._failed(error)
            finish()  # what has been lent may be known to the call alone
            lender.take_back()

    def lender(self) -> "Lender | None":
        """The lender of the call that this thread is in."""
        lender: Lender | None = getattr(self._in_call, "lender", None)
        return lender

    def end_all(self) -> None:
        """The fix is taken off: nothing is lent any more, also by calls that are on."""
        self._over = True
        for lender in self._lenders.all():
            lender.end()


def _is_as_known(manager: Any) -> bool:
    """Whether the attributes are in the instance. Then every access to one that is put away reaches our descriptor."""
    kind = type(manager)
    return all(
        name in vars(manager) and isinstance(inspect.getattr_static(kind, name, None), WayBack) for name in PUT_AWAY
    )


class WayBack:
    """Stands on the class for an attribute that has been put away. Not a data descriptor: an instance that has the
    attribute never comes here."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, manager: Any, kind: type | None = None) -> Any:
        if manager is None:
            return self
        lender: Lender | None = vars(manager).get(LENDER)
        try:
            return vars(manager)[self.name] if lender is None else lender.find(manager, self.name)
        except KeyError:
            raise AttributeError(
                f"{type(manager).__name__!r} object has no attribute {self.name!r}", name=self.name, obj=manager
            ) from None


def way_back(name: str) -> Callable[[Any], Any]:
    return lambda _absent: WayBack(name)
