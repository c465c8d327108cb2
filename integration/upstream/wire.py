"""The line between the two ranks of a pipeline, which lie in two processes: it keeps the order of messages by tag."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from integration.upstream import provided

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RANKS = 2


class PeerEnded(RuntimeError):
    """The other rank is gone. Upstream's would wait for it for ever."""


class Sent:
    """A message that the line has taken, as the handle of an asynchronous send."""

    def wait(self) -> None:
        pass


class Wire:
    """`dist` sends and receives objects with this. A receive waits, as upstream's does."""

    def __init__(self, line: "Connection") -> None:
        self._line = line
        self._boxes: dict[str, deque[Any]] = {}

    def isend_object(self, value: Any, dest: int, tag: Any) -> Sent:
        del dest
        # A send goes on though nobody takes it.
        with suppress(BrokenPipeError):
            self._line.send((_name(tag), value))
        return Sent()

    def recv_object(self, src: int, tag: Any) -> Any:
        del src
        box = self._boxes.setdefault(_name(tag), deque())
        while not box:
            try:
                arrived, value = self._line.recv()
            except (EOFError, ConnectionResetError) as error:
                raise PeerEnded(f"the other rank ended without a message with tag {_name(tag)}") from error
            self._boxes.setdefault(arrived, deque()).append(value)
        return box.popleft()


def _name(tag: Any) -> str:
    """Some eras name their tags in a module that no excerpt holds, so a tag may be a double."""
    return str(getattr(tag, "__qualname__", tag))


@dataclass(frozen=True)
class Rank:
    number: int
    wire: Wire

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def dist(self) -> Any:
        """The executor calls this `dist`."""
        found = provided.one_rank()
        other = (self.number + 1) % RANKS
        mapping = found.mapping
        mapping.rank = mapping.pp_rank = self.number
        mapping.world_size = mapping.pp_size = RANKS
        mapping.tp_group = [self.number]
        mapping.has_pp = lambda: True
        mapping.is_first_pp_rank, mapping.is_last_pp_rank = lambda: self.is_first, lambda: not self.is_first
        vars(found).update(
            rank=self.number,
            pp_rank=self.number,
            pp_size=RANKS,
            world_size=RANKS,
            has_pp=True,
            is_first_pp_rank=self.is_first,
            is_last_pp_rank=not self.is_first,
            is_second_last_pp_rank=self.is_first,
            prev_pp_rank=other,
            next_pp_rank=other,
            isend_object=self.wire.isend_object,
            recv_object=self.wire.recv_object,
            recv_object_from_isend=self.wire.recv_object,
        )
        return found
