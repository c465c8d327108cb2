"""Live requests as the scheduler side knows them: their tokens, their blocks, and what they load."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.transfers import blocks_by_group, flat

if TYPE_CHECKING:
    from trtllm_kvfix.offload.remote.keys import KeyChain
from collections.abc import Collection

from trtllm_kvfix.offload.ledger import FetchJob, InUse, JobState, Ledger, LoadJob
from trtllm_kvfix.offload.policy import PendingLoad

PRIORITY_DEFAULT = 35  # upstream's, for blocks without a retention range


@dataclass
class LiveRequest:
    """Its leading blocks are a sequence of the host tier's index, which keeps their tokens; the rest are here."""

    request_id: int
    index: TierIndex
    sequence: int
    tail: list[int]  # tokens behind those that the index has
    had: int  # blocks that the device had when it came
    identity: Identity = field(default_factory=Identity)
    blocks: list[list[int]] = field(default_factory=list)  # of the device: for each layer group, in order of position
    # After preemption, upstream may report additions to blocks that no longer exist. The list is taken again when the
    # request is reported as a new one, or ends; until then nothing is appended to this one.
    frozen: bool = False
    grown: int = 0  # blocks that it may have reached since, while it was frozen
    priorities: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose kernels have been given to the device
    indexed: int = 0  # tokens that the index has
    covered: int = 0  # blocks that are in the host tier, on their way, or not worth storing
    worth: int = sys.maxsize  # blocks from this one on are not worth it
    due: int = field(init=False)  # tokens that must be computed before there is more to cover
    load: PendingLoad | None = None
    is_counted: bool = True  # what it found; for a reservation, once upstream has accepted some of it
    prompt_tokens: int = field(init=False)
    chain: "KeyChain | None" = None  # names its blocks if they go to the remote tier as well
    users: int = 0  # users of the sequence beyond the end of the request
    is_over: bool = False

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tail)
        self.cover(0)

    def take(self, tokens: Sequence[int], blocks: list[list[int]]) -> None:
        """Take over what upstream reports: it is complete."""
        self.tail, self.blocks, self.frozen = list(tokens[self.indexed :]), blocks, False
        if len(tokens) < self.indexed:
            self.worth = 0  # upstream has taken tokens back, and does not report which others it may have put there

    def extend(self, tokens: Iterable[int], blocks: list[list[int]], priorities: Iterable[int] = ()) -> None:
        """`priorities` are those of the added blocks, empty if the request has no retention ranges."""
        if self.frozen:
            return
        self.tail.extend(tokens)
        self.priorities.extend(priorities)
        self.blocks = self.blocks or [[] for _ in blocks]
        for known, added in zip(self.blocks, blocks, strict=True):
            known.extend(added)

    @property
    def length(self) -> int:
        """The number of tokens that are known."""
        return self.indexed + len(self.tail)

    @property
    def allocated(self) -> int:
        """The number of blocks that every layer group has."""
        if len(self.blocks) == 1:  # as in most caches, and asked for each block that is stored
            return len(self.blocks[0])
        return min(map(len, self.blocks), default=0)

    def whole_blocks(self) -> int:
        """The number of blocks whose tokens are all known and computed."""
        known = self.indexed + len(self.tail)
        return min(min(self.computed, known) // self.index.tokens_per_block, self.allocated)

    def prompt_blocks_from(self, first: int) -> int:
        """Count the whole blocks of its prompt from this one on."""
        return max(self.prompt_tokens // self.index.tokens_per_block - first, 0)

    def index_blocks(self, blocks: int) -> None:
        """Move so many blocks from the tail to the index, unless it has them already."""
        more = blocks * self.index.tokens_per_block - self.indexed
        if more > 0:
            self.index.extend(self.sequence, self.tail[:more])
            if self.chain is not None:
                self.chain.extend(self.tail[:more])
            del self.tail[:more]
            self.indexed += more

    def cover(self, blocks: int) -> None:
        self.covered = blocks
        self.due = (blocks + 1) * self.index.tokens_per_block

    def worth_storing(self, blocks: int, priority_min: int) -> int:
        """Count the leading blocks worth storing: all `covered`, and the next ones up to the first of low priority."""
        if not self.priorities and priority_min <= PRIORITY_DEFAULT:
            return min(blocks, self.worth)
        for at in range(self.covered, min(blocks, self.worth)):
            priority = self.priorities[at] if at < len(self.priorities) else PRIORITY_DEFAULT
            if priority < priority_min:
                self.worth = at
                break
        return min(blocks, self.worth)

    def priorities_until(self, end: int) -> list[int]:
        """The priorities of the blocks behind the covered ones. Empty if the request has no retention ranges."""
        if not self.priorities:
            return []
        told = self.priorities[self.covered : end]
        return told + [PRIORITY_DEFAULT] * (end - self.covered - len(told))

    def may_have_grown(self, tokens: int) -> bool:
        """The request grows while it is frozen. Upstream does not report into which blocks, up to as many as it had."""
        reach = -(-tokens // self.index.tokens_per_block)
        is_new = reach > max(self.grown, self.allocated)
        if is_new:
            self.grown = reach
        return is_new

    def part(self, first: int, end: int) -> tuple[int, ...]:
        return part_of(self.blocks, first, end)

    def let_go_of_load(self) -> None:
        """Let go of what it was promised. If that is on its way, it is held until it has arrived."""
        load, self.load = self.load, None
        if load is not None and load.job is None:
            load.empty(self.index)

    def outlive_weights(self) -> None:
        """Its blocks stay its own: some were computed with weights that are gone, and the others follow from them."""
        self.worth, self.chain = 0, None
        if self.load is not None:
            self.load.is_outdated = True

    def close(self) -> None:
        """End the request: nothing more will be looked for or stored."""
        self.let_go_of_load()
        self.is_over = True
        self._close_unused()

    def hold(self) -> None:
        """Keep the sequence until whoever holds it has let it go."""
        self.users += 1

    def let_go(self) -> None:
        self.users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self.is_over and not self.users:
            self.index.close(self.sequence)


def opened(index: TierIndex, identity: Identity) -> int:
    """A sequence without tokens."""
    return index.open(lora_id=identity.lora_id, salt=identity.salt, extra_keys=identity.extra_keys)


def part_of(blocks: list[list[int]], first: int, end: int) -> tuple[int, ...]:
    """Blocks `first` to `end` of one layer group, then of the next, in the order of jobs."""
    if len(blocks) == 1:
        return tuple(blocks[0][first:end])
    return tuple([block for group in blocks for block in group[first:end]])


def added_blocks(data: Any) -> list[list[int]]:
    """Return the blocks that a report adds, by layer group: mostly none. With several groups, upstream leaves the flat
    list empty."""
    by_group = getattr(data, "new_block_ids_by_layer_group", None)
    if by_group and len(by_group) > 1:
        return blocks_by_group(by_group)
    return [flat(data.new_block_ids)] if data.new_block_ids else []


def tokens_computed(request: Any, live: LiveRequest) -> int:
    """Count the computed tokens of a request that ends: up to its position in the prompt, then all but the last."""
    position = getattr(request, "context_current_position", None)
    prompt = getattr(request, "prompt_len", None)
    if position is None or prompt is None:
        return live.computed
    return position if position < prompt else live.length - 1


class Loads:
    """What the host tier adds to prompts, pinned from the promise until it has arrived. The executor's thread uses it.

    Upstream asks when a request has room, and reports where its blocks lie. The newest builds reserve while they
    schedule instead (`Reservations`).
    """

    def __init__(self, tokens_per_block: int, ledger: Ledger, in_use: InUse) -> None:
        self.reservations = Reservations(tokens_per_block, ledger)
        self.are_reserved = False  # upstream asks for promises, again and again
        self._tokens_per_block = tokens_per_block
        self._ledger = ledger
        self._in_use = in_use

    def place(self, live: LiveRequest, load: PendingLoad) -> None:
        """Plan the load: the request's blocks are known, and may be fewer than it was promised."""
        load.job = self._ledger.next_number()
        slots = tuple(load.slots[: max(live.allocated - load.first, 0)])
        end = load.first + len(slots)
        # The device may have a part of the first block, which is written whole: a failed load loses this part, too.
        position = load.first * self._tokens_per_block
        until = end * self._tokens_per_block if load.is_short else None
        self.plan(LoadJob(load.job, live.request_id, live.part(load.first, end), slots, position, until=until), load)

    def plan(self, job: LoadJob, load: PendingLoad) -> None:
        self._in_use.add(job)
        self._ledger.plan(job, load)
        if load.is_outdated and job.slots:
            self._ledger.outdate(job.number)

    def plan_forgotten(self, waiting: Collection[int], live: Collection[int]) -> None:
        """A request may end between the promise of its load and the report of its blocks, and then it has none.

        Upstream waits for the load all the same: for one that brings nothing.
        """
        forgotten = set(waiting).difference(live)
        if forgotten:
            coming = [*self._ledger.of(LoadJob), *self._ledger.of(FetchJob)]
            forgotten.difference_update(record.job.request_id for record in coming)
        for request_id in sorted(forgotten):
            number = self._ledger.next_number()
            self.plan(LoadJob(number, request_id, (), (), 0), PendingLoad([], 0, 0, 0, job=number))

    def let_go_of_promise(self, live: LiveRequest) -> None:
        """Let go, as the request has ended or begins again. What is on its way to it stays until it has arrived."""
        if live.load is not None and live.load.job is None:
            self.reservations.forget(live.load)
            live.let_go_of_load()

    def accept(self, accepted: Any) -> None:
        """Plan a load that was reserved; upstream may report it more than once."""
        planned = self.reservations.accept(accepted)
        if planned is not None:
            self.plan(*planned)

    def take_back(self, reservation_id: int, start: int, end: int) -> None:
        job = self.reservations.release(reservation_id, start, end)
        if job is not None:
            self._ledger.take_back(job)

    def outdate(self) -> None:
        """Note that the weights have changed. What is on its way, or unknown to some rank, is worth nothing."""
        for record in self._ledger.of(LoadJob):
            if record.job.slots and record.written is not JobState.ENDED_EVERYWHERE:
                self._ledger.outdate(record.number)

    def empty(self, request_id: int) -> None:
        """A load of the request that was not sent does not begin. Upstream waits for it, so it is sent all the same."""
        for record in self._ledger.planned(request_id, LoadJob):
            load = record.job
            assert isinstance(load, LoadJob)
            self._in_use.remove(load)
            record.job = load._replace(blocks=(), slots=())

    def end(self, job: LoadJob) -> None:
        self._in_use.remove(job)


class Reservations:
    """Prefixes that upstream reserves while it schedules, before it knows whether the request gets room.

    The newest KVCacheManagerV2 does so. From `reserve_prefix` on, the reserved blocks of the host tier stay, whole or
    in part, until upstream has released all of them. Upstream names what it accepts in the report of the step, and the
    load begins with that step; until then upstream may still take it back. An accepted load is over when every rank
    says so.

    Upstream continues behind the tokens that it was promised, as with other loads. If they did not come, the request
    gives its cache back and computes its prompt.

    Reservations are known by upstream's numbers. The executor's thread alone uses them.
    """

    def __init__(self, tokens_per_block: int, ledger: Ledger) -> None:
        self._tokens_per_block = tokens_per_block
        self._ledger = ledger  # has those that were accepted
        self._promised: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._promised)

    def add(self, reservation_id: int, live: LiveRequest) -> None:
        assert live.load is not None
        live.load.reservation = reservation_id
        self._promised[reservation_id] = live

    def release(self, reservation_id: int, start: int, end: int) -> int | None:
        """Release tokens `start` to `end`: all, or the part at one end. If upstream takes back what it has accepted,
        returns the job that must not begin any more."""
        live = self._promised.get(reservation_id)
        load = live.load if live is not None else None
        if live is None or load is None:  # accepted; or it ended with its request, or has been loaded
            accepted = self._ledger.load_of(reservation_id)
            return None if accepted is None else accepted.number
        kept = (end, load.end) if start <= load.position else (load.position, start)
        self._keep(live, load, *kept)
        if load.tokens == 0:
            del self._promised[reservation_id]
            live.load = None
        return None

    def accept(self, accepted: Any) -> tuple[LoadJob, PendingLoad] | None:
        """Return the load that a report names, or nothing if it was reported before. If the promise ended with its
        request, the load brings nothing: upstream waits for its end."""
        if self._ledger.load_of(accepted.reservation_id) is not None:
            return None
        live = self._promised.pop(accepted.reservation_id, None)
        load = live.load if live is not None else None
        if live is None or load is None:
            load = PendingLoad([], accepted.start // self._tokens_per_block, accepted.start, 0)
        else:
            self._keep(live, load, accepted.start, accepted.end)
        load.job = self._ledger.next_number()
        blocks = part_of(blocks_by_group(accepted.block_ids_by_layer_group), load.first, load.first + len(load.slots))
        position = load.first * self._tokens_per_block
        job = LoadJob(load.job, accepted.request_id, blocks, tuple(load.slots), position, accepted.reservation_id)
        return job, load

    def forget(self, load: PendingLoad) -> None:
        """Forget a promise whose request has ended, or begins again, before upstream has accepted it."""
        if load.reservation is not None:
            self._promised.pop(load.reservation, None)

    def _keep(self, live: LiveRequest, load: PendingLoad, start: int, end: int) -> None:
        """Keep the blocks that hold a token from `start` to `end`."""
        size = self._tokens_per_block
        first = start // size
        behind = -(-end // size) if end > start else first
        before, after = max(first - load.first, 0), max(behind - load.first, 0)
        live.index.unpin(load.slots[:before] + load.slots[after:])
        load.slots, load.first = load.slots[before:after], first
        load.position, load.tokens = start, max(end - start, 0)
