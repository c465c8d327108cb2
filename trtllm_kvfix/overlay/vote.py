"""Ranks that share a batch change it together or not at all.

They compute the same change from the same inputs, so only a fault of our own, or inputs that differ, can make them
differ; and a batch that differs between ranks silently gives wrong answers. So a rank that would change a batch
proposes the change to the others, and keeps it only if every other rank proposes the same for the same step. A rank
whose code failed abstains, keeps upstream's batch and does not wait. Steps are counted alike on all ranks. A step
without a change sends nothing.

A rank that fails, or loses, three times in a row stands down and informs the others. From then on it counts as an
abstention, so every later vote is lost, and a rank that loses one for this reason stands down with it. So all ranks
stand down at the same step, after which no change is kept anywhere.
"""

import hashlib
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from trtllm_kvfix.log import log
from trtllm_kvfix.overlay.fuse import IN_A_ROW_MAX, Fuse
from trtllm_kvfix.ranks import PATIENCE_S, Channel, Communicator, Patience, RankSilent, Tag, communicator

PROPOSES, ABSTAINS, STANDS_DOWN = "proposes", "abstains", "stands down"
Message = tuple[str, int, str]  # one of the words above, the step, the digest of what is proposed


class Mapping(Protocol):
    """The part of upstream's mapping that we read."""

    @property
    def world_size(self) -> int: ...
    @property
    def pp_size(self) -> int: ...
    @property
    def enable_attention_dp(self) -> bool: ...


class Voting:
    """The votes of one fix, or of the connector's room, for one engine. Only that executor's thread uses it."""

    def __init__(
        self,
        fuse: Fuse,
        tag: Tag,
        *,
        find: Callable[[], Communicator | None] = communicator,
        patience_s: float = PATIENCE_S,
    ) -> None:
        fuse.may_blow = False  # it would leave the others waiting
        self._fuse = fuse
        self._tag = tag
        self._find = find
        self._patience_s = patience_s
        self._step = 0
        self._lost_in_a_row = 0
        self._heard: dict[int, list[Message]] = {}
        self.is_shared = False
        self._complained = False

    def begin(self) -> None:
        """Begin a step that every rank of the batch passes."""
        self._step += 1

    def may_change(self, mapping: Mapping | None) -> bool:
        """Whether batches may be changed where ranks are arranged like this, alone or after a vote."""
        comm = self._find()
        ranks = comm.Get_size() if comm is not None else 1
        if mapping is None:
            why = "upstream does not report which ranks share a batch" if ranks > 1 else ""
            self.is_shared = False
        elif mapping.pp_size > 1:
            why = f"there are {mapping.pp_size} pipeline stages"
        else:
            self.is_shared = mapping.world_size > 1 and not mapping.enable_attention_dp
            alone = not self.is_shared or ranks == mapping.world_size
            why = "" if alone else f"{mapping.world_size} ranks share a batch, and MPI joins {ranks} of them"
        if why and not self._complained:
            self._complained = True
            log.warning("%s leaves the batches of this engine alone: %s", self._fuse.fix_id, why)
        return not why

    def agree(self, change: object) -> bool:
        """Whether all ranks of the batch make this change in this step. Then it has to stay as it is."""
        if not self.is_shared:
            return True
        try:
            comm = self._find()
            return comm is not None and self._ask(self._channel(comm), change)
        except Exception as error:
            self._fuse.fault(error)
            self.stand_down("the ranks cannot be asked")
            return False

    def abstain(self) -> None:
        """Abstain, because our code failed in this step: upstream's batch stays."""
        if self._fuse.in_a_row >= IN_A_ROW_MAX:
            self.stand_down(f"{self._fuse.in_a_row} faults in a row")
        else:
            self._say_if_possible(ABSTAINS)

    def stand_down(self, why: str) -> None:
        """Stop changing batches, here and on the other ranks."""
        if not self._fuse.blown:
            self._say_if_possible(STANDS_DOWN)
        self._fuse.blow(why)

    def _channel(self, comm: Communicator) -> Channel:
        return Channel(comm, self._tag, "has not answered")

    def _ask(self, channel: Channel, change: object) -> bool:
        mine = hashlib.sha256(repr(change).encode()).hexdigest()[:16]
        patience = Patience(self._patience_s)
        self._say(channel, PROPOSES, mine)
        votes = {rank: self._vote_of(channel, rank, patience) for rank in channel.others}
        if all(vote == (PROPOSES, mine) for vote in votes.values()):
            self._lost_in_a_row = 0
            return True
        self._lose(mine, votes)
        return False

    def _lose(self, mine: str, votes: dict[int, tuple[str, str]]) -> None:
        self._lost_in_a_row += 1
        against = {rank: vote for rank, vote in votes.items() if vote != (PROPOSES, mine)}
        said = ", ".join(f"rank {rank} {word or 'said nothing'}" for rank, (word, _) in sorted(against.items()))
        log.error(
            "%s: the ranks do not agree on a change of the batch in step %d, upstream's batch stays: %s",
            self._fuse.fix_id,
            self._step,
            said,
        )
        gone = any(word in ("", STANDS_DOWN) for word, _ in against.values())
        if gone or self._lost_in_a_row >= IN_A_ROW_MAX:
            self.stand_down(f"{self._lost_in_a_row} votes lost in a row: {said}")

    def _say_if_possible(self, word: str) -> None:
        """Inform the other ranks. Where they share no batch, no rank reads it; it is a few words in the life of a
        process."""
        try:
            comm = self._find()
            if comm is not None:
                self._say(self._channel(comm), word, "")
        except Exception as error:
            self._fuse.fault(error)

    def _say(self, channel: Channel, word: str, digest: str) -> None:
        channel.send_to_others((word, self._step, digest))

    def _vote_of(self, channel: Channel, rank: int, patience: Patience) -> tuple[str, str]:
        """The rank's last message for this step, or an empty one after a while. Standing down counts for all later
        steps."""
        while True:
            heard = self._hear(channel, rank)
            if heard:
                word, _, digest = heard[-1]
                return word, digest
            try:
                channel.wait(rank, patience)
            except RankSilent as error:
                log.error("%s: %s", self._fuse.fix_id, error)
                return "", ""

    def _hear(self, channel: Channel, rank: int) -> list[Message]:
        """The message for this step, out of all that have come. A rank may be ahead: messages for later steps are kept,
        and those for earlier steps are dropped."""
        box = self._heard.setdefault(rank, [])
        box += channel.arrived(rank)
        box[:] = [said for said in box if said[1] >= self._step or said[0] == STANDS_DOWN]
        return [said for said in box if said[1] <= self._step]


class Votings:
    """The votes of one fix, for each engine of this process: steps and ranks of one say nothing of another's.

    Messages bear the fix's tag and no engine's name, so two engines cannot vote with the same ranks. Upstream starts
    one for each process of MPI; should a second one vote, the fix stands down on all ranks.
    """

    def __init__(self, make: Callable[[], Voting]) -> None:
        self._make = make
        self._of: WeakKeyDictionary[Any, Voting] = WeakKeyDictionary()
        self._lock = threading.Lock()  # guards what stands above: every engine comes in a thread of its own

    def of(self, resource_manager: Any) -> Voting:
        found = self._of.get(resource_manager)
        if found is not None:
            return found
        with self._lock:
            return self._of.setdefault(resource_manager, self._make())

    def may_change(self, resource_manager: Any, mapping: Mapping | None) -> bool:
        mine = self.of(resource_manager)
        if not mine.may_change(mapping):
            return False
        with self._lock:
            others = [each for each in self._of.values() if each is not mine]
        if mine.is_shared and any(each.is_shared for each in others):
            mine.stand_down("two engines of this process share batches with the same ranks")
            return False
        return True


def mapping_of(manager: Any) -> Mapping | None:
    """The mapping of a KV-cache manager."""
    mapping: Mapping | None = getattr(manager, "mapping", None)
    return mapping
