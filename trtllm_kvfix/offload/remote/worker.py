"""The worker side with a remote tier: passes fetches and puts on to this rank's porter, and agrees on their ends."""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any, get_args

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import HostPool
from trtllm_kvfix.offload.host_tier import text_of
from trtllm_kvfix.offload.ledger import Ended, FetchJob, Link, PutJob, Step
from trtllm_kvfix.offload.patches import Chooser
from trtllm_kvfix.offload.remote.keys import Unnameable, layout_parts, parts_of, root_of
from trtllm_kvfix.offload.remote.messages import (
    CallOver,
    Get,
    Look,
    LookAnswer,
    Message,
    Outcome,
    Outcomes,
    Put,
    Reply,
    Spec,
    StoreState,
)
from trtllm_kvfix.offload.remote.scheduler import FUSE, HeldBack
from trtllm_kvfix.offload.scheduler import PAUSE_S_MAX, PAUSE_S_MIN
from trtllm_kvfix.offload.tier_report import TierReport
from trtllm_kvfix.offload.transfers import BlockLayout
from trtllm_kvfix.offload.worker import MakePool, OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.ranks import Ranks
from trtllm_kvfix.settings import environment

REST_S = 0.0005  # of the executor's thread, at a time: a new request may have come meanwhile
UNSURE_SHARE = 64  # of the pool's slots, one in so many may be lost to reads that have failed
# Mooncake's client logs every transfer, and tries twenty times to reach a master; we do both ourselves.
QUIET = {"MC_STORE_CLIENT_SETUP_RETRIES": "1"}
LOUD = "MC_LOG_LEVEL"  # set by somebody who wants to read them


class PorterHandle:
    """Starts a rank's porter, ends it, starts it again, and knows what was asked of it.

    A porter that was asked to read into slots may write them for as long as it lives. So slots whose read has failed
    are left alone until the process is gone, and too many of them end it. A call that takes too long does so, too, and
    is answered once the process is gone.

    Any thread may call it. None waits, except in `close` and `wait_for_word`.
    """

    def __init__(self, spec: Spec, timeout_s: float, brings: str = "remote tier") -> None:
        """`brings`: what is there while it is up, as the log names it."""
        self._spec, self._timeout_s, self._brings = spec, timeout_s, brings
        self._lock = threading.Lock()  # guards what follows
        # Of each kind, what is not answered and since when, the oldest first; and when a call of that kind last ended.
        self._asked: dict[str, dict[int, tuple[Message, float]]] = {kind.__name__: {} for kind in get_args(Message)}
        self._moved_on: dict[str, float] = dict.fromkeys(self._asked, 0.0)
        self._answered: deque[tuple[Message, Outcomes]] = deque()  # puts and gets
        self._found: deque[LookAnswer] = deque()
        # Slots that the process may write for as long as it lives, since their reads have failed, and who waits for it.
        self._unsure: set[int] = set()
        self._leaving: list[int] = []
        self._gone: deque[int] = deque()
        self._stuck: int | None = None  # a read for whose sake the process was ended
        self._process: subprocess.Popen[bytes] | None = None
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.is_up = False
        self.text = "not started"
        self.starts = 0
        self.error: Exception | None = None  # in the thread: there will be no porter any more
        self._closing = threading.Event()
        self._heard = threading.Event()  # it has said something since somebody last waited for it
        self._thread = threading.Thread(target=self._supervise, name="kvfix-porter", daemon=True)
        self._thread.start()

    @property
    def process_id(self) -> int | None:
        """The porter's process id. None if there is no porter now."""
        process = self._process
        return process.pid if process is not None else None

    def ask(self, message: Message) -> bool:
        """Ask the porter for this. False if there is none now, and so no answer. `take_found` returns answers to
        lookups, and `take_answered` all others."""
        with self._lock:
            if not self.is_up:
                return False
            self._asked[type(message).__name__][message.number] = message, monotonic()
            self._outbox.put(message)
        return True

    def wait_for_word(self, wait_s: float) -> None:
        """Wait until the porter says something. Returns at once where it was asked for nothing."""
        with self._lock:
            is_asked = any(self._asked.values())
        if is_asked:
            self._heard.wait(wait_s)
            self._heard.clear()

    def end_if_stuck(self) -> None:
        """Kill a porter whose call of the store does not end: it would hold up all that come after it."""
        stuck = [kind for kind in get_args(Message) if self.waits_s(kind) > self._timeout_s]
        with self._lock:
            process = self._process
            if Get in stuck:
                self._stuck = next(iter(self._asked[Get.__name__]), None)
        if stuck and process is not None:
            process.kill()

    def note_gone(self, number: int, slots: Collection[int]) -> None:
        """Have `take_gone` return this number once no process can write these slots because of reads that have
        failed."""
        with self._lock:
            if self._unsure.isdisjoint(slots):
                self._gone.append(number)
            else:
                self._leaving.append(number)

    def take_gone(self) -> list[int]:
        return [self._gone.popleft() for _ in range(len(self._gone))]

    def waits_s(self, kind: type[Message]) -> float:
        """For how long no call of this kind has ended, although one was asked for; 0 if none was."""
        now = monotonic()
        with self._lock:
            _, since = next(iter(self._asked[kind.__name__].values()), (None, now))
            return now - max(since, self._moved_on[kind.__name__])

    def take_found(self) -> list[LookAnswer]:
        return [self._found.popleft() for _ in range(len(self._found))]

    def take_answered(self) -> list[tuple[Message, Outcomes]]:
        """Return the messages that have been answered or never will be. Nobody uses their slots any more."""
        return [self._answered.popleft() for _ in range(len(self._answered))]

    def close(self, wait_s: float) -> bool:
        """Close the porter. True if its process is gone and so writes nothing any more."""
        self._closing.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.kill()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        pause_s = PAUSE_S_MIN
        try:
            while not self._closing.is_set():
                began = monotonic()
                self._live_once()
                if monotonic() - began > PAUSE_S_MAX:
                    pause_s = PAUSE_S_MIN
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        except Exception as error:
            with self._lock:
                process, self.error = self._process, error
            if process is not None:
                process.kill()
                process.wait()
            self._lost()

    def _live_once(self) -> None:
        """Start a process, take what it says until it ends, and make sure that it is gone."""
        outbox = queue.SimpleQueue[Message | None]()
        try:
            process, connection, sender = self._started(outbox)
        except OSError as error:  # the system has no memory, process or descriptor for it now, and may have later
            self._note(StoreState(is_up=False, text=f"the process that has the store's client does not start: {error}"))
            return
        with self._lock:
            self._process, self._outbox = process, outbox
            self.starts += 1
        with suppress(EOFError, OSError):
            while not self._closing.is_set():
                self._hear(connection.recv(), process)
                self._heard.set()
        process.kill()
        process.wait()
        self._lost()
        outbox.put(None)
        sender.join()
        connection.close()

    def _started(
        self, outbox: "queue.SimpleQueue[Message | None]"
    ) -> tuple[subprocess.Popen[bytes], Connection, threading.Thread]:
        """The process, what connects us to it, and the thread that sends it what is in the outbox."""
        paths = os.pathsep.join(filter(None, sys.path))  # it finds what this process finds
        environ = QUIET | environment() | {"PYTHONPATH": paths}
        ours, theirs = socket.socketpair()
        with ours, theirs:
            spec = json.dumps(self._spec._replace(socket=theirs.fileno(), engine=os.getpid())._asdict())
            process = subprocess.Popen(
                [sys.executable, "-m", "trtllm_kvfix.offload.remote.porter_process", spec], stdin=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), self._spec.pool) if fd >= 0],
                env=environ, stderr=None if LOUD in environ else subprocess.DEVNULL,
            )  # fmt: skip
            connection = Connection(ours.detach())
        sender = threading.Thread(target=pass_on, args=(outbox, connection), name="kvfix-porter-out", daemon=True)
        try:
            sender.start()
        except RuntimeError as error:  # what Python makes of EAGAIN
            process.kill()
            process.wait()
            connection.close()
            raise OSError(str(error)) from error
        return process, connection, sender

    def _hear(self, reply: Reply, process: "subprocess.Popen[bytes]") -> None:
        if isinstance(reply, StoreState):
            self._note(reply)
            return
        with self._lock:
            if isinstance(reply, CallOver):
                self._moved_on[reply.kind] = monotonic()
                return
            if isinstance(reply, LookAnswer):
                self._asked[Look.__name__].pop(reply.number)
                self._found.append(reply)
                return
            asked = next(one for kind, one in self._asked.items() if kind != Look.__name__ and reply.number in one)
            message, _ = asked[reply.number]
            if isinstance(message, Get) and not self._bears(message, reply):
                process.kill()  # and is answered as all that it has been asked
                return
            del asked[reply.number]
            self._answered.append((message, reply))

    def _bears(self, get: Get, reply: Outcomes) -> bool:
        """Whether the process may live on. Slots whose reads failed are lost while it lives: a few of them cost less
        than all that it is doing."""
        failed = zip(get.slots, reply.outcomes, strict=False)
        self._unsure.update(slot for slot, outcome in failed if outcome is Outcome.FAILED)
        return not reply.error and len(self._unsure) <= max(self._spec.slots // UNSURE_SHARE, 1)

    def _note(self, state: StoreState) -> None:
        with self._lock:
            is_new = (self.is_up, self.text) != state
            self.is_up, self.text = state
        if is_new and state.is_up:
            log.info("the %s is up: this node is %s to the store", self._brings, state.text)
        elif is_new:
            log.error("the %s is not there, and serving goes on without it: %s", self._brings, state.text)

    def _lost(self) -> None:
        """Answer all that the process was asked: it is gone."""
        with self._lock:
            asked = [each for of_kind in self._asked.values() for each in of_kind.values()]
            for of_kind in self._asked.values():
                of_kind.clear()
            if self.is_up:
                self.is_up, self.text = False, "the process that has the store's client has ended"
            for message, _ in asked:
                if isinstance(message, Look):
                    self._found.append(LookAnswer(message.number, error=self.text))
                elif isinstance(message, Get) and message.number == self._stuck:
                    outcomes = (Outcome.FAILED,) * len(message.slots)
                    self._answered.append((message, Outcomes(message.number, outcomes)))
                else:
                    self._answered.append((message, Outcomes(message.number, (), self.text)))
            self._stuck = None
            self._unsure.clear()
            self._gone += self._leaving
            self._leaving.clear()


def state_of(porter: PorterHandle) -> str:
    if porter.error is not None:
        return f"down: its thread ended with {porter.error}"
    return f"{'up' if porter.is_up else 'down'}: {porter.text}"


def pass_on(outbox: "queue.SimpleQueue[Message | None]", connection: Connection) -> None:
    """Send what is in the outbox. It has a thread of its own: a process that does not read fills the socket."""
    with suppress(OSError):
        while (message := outbox.get()) is not None:
            connection.send(message)


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENDS = ("missing", "full", "changed on its way", "failed")


class StoreHere:
    """The store, as the scheduler side of this process sees it."""

    def __init__(self, porter: PorterHandle, root: bytes, block_bytes: int, ranks: int) -> None:
        self._porter, self.root, self.block_bytes, self.ranks = porter, root, block_bytes, ranks

    @property
    def is_up(self) -> bool:
        return self._porter.is_up

    def look(self, look: Look) -> bool:
        return self._porter.ask(look)

    def take_found(self) -> list[LookAnswer]:
        return self._porter.take_found()

    def lookups_wait_s(self) -> float:
        return self._porter.waits_s(Look)


class RemoteCarrier:
    """Called by the executor's thread alone."""

    def __init__(
        self,
        settings: OffloadSettings,
        link: Link,
        ranks: Ranks,
        *,
        at_start: Ranks,
        report: TierReport,
        identity: Mapping[str, str] | None,
    ) -> None:
        self._settings, self._link, self._ranks, self._at_start = settings, link, ranks, at_start
        self._report, self._ledger = report, link.ledger
        self._identity = identity  # of what blocks hold, besides their layout; None: there is no remote tier
        self._pool: HostPool | None = None
        self._block_bytes = 0
        self.porter: PorterHandle | None = None
        self.holder: PorterHandle | None = None  # of the segment: nothing that fails in the porter takes it along
        self.chooser: Chooser = HeldBack(link, ranks)

    @property
    def is_there(self) -> bool:
        return self.porter is not None

    def register(self, layout: BlockLayout, pool: HostPool) -> None:
        if self._identity is None:
            self._report.remote_is("off: the engine's arguments have no name (see the log)")
            return
        self._pool, self._block_bytes = pool, layout.block_bytes
        remote, ranks = self._settings.remote, self._ranks
        spec = Spec(
            socket=-1, pool=pool.descriptor, block_bytes=layout.block_bytes, slot_bytes=pool.slot_bytes,
            slots=pool.slots, rank=ranks.rank, ranks=ranks.size, master=remote.master or "", protocol=remote.protocol,
            host=remote.host, segment_bytes=0,
        )  # fmt: skip
        self.porter = PorterHandle(spec, remote.timeout_s)
        machines = self._at_start.gather(text_of(BOOT_ID))
        segment_bytes = remote.segment_bytes // machines.count(machines[self._at_start.rank])
        if segment_bytes:
            spec = spec._replace(pool=-1, segment_bytes=segment_bytes)
            self.holder = PorterHandle(spec, remote.timeout_s, "remote tier's segment")
        kinds = [f"{one.block_bytes} bytes, {one.kind}" for one in layout.pools]
        root = root_of({**self._identity, **layout_parts(kinds, ranks.size)})
        if ranks.rank == 0:
            self._link.store = StoreHere(self.porter, root, layout.block_bytes, ranks.size)

    def rest(self) -> None:
        if self.porter is not None:
            self.porter.wait_for_word(REST_S)

    def bind(self, step: Step) -> None:
        for fetch in step.fetches:
            self._ledger.queue(fetch)
            self._fetch(fetch)
        for put in step.puts:
            self._ledger.queue(put)
        for free in step.frees:
            self._ledger.queue(free)
            if self.porter is not None:
                self.porter.note_gone(free.number, free.slots)

    def look(self) -> None:
        if self.porter is not None:
            self.porter.end_if_stuck()
            self._report.remote_is(state_of(self.porter), "" if self.holder is None else state_of(self.holder))

    def close(self, until: float) -> None:
        """Close the porter before the holder, because the pool depends on it."""
        if self.porter is not None and not self.porter.close(left_until(until)) and self._pool is not None:
            self._pool.abandon()  # it may still be written
        if self.holder is not None:
            self.holder.close(left_until(until))
        self._link.store = None

    def _fetch(self, fetch: FetchJob) -> None:
        if self.porter is not None and self.porter.ask(Get(fetch.number, fetch.keys, fetch.slots)):
            self._ledger.begin(fetch.number, monotonic())
        else:
            self._ledger.end_here(Ended(fetch.number, "there is no store now"))

    def send_puts(self) -> None:
        """Hand on all puts. The porter has a queue for them, which goes on whatever the engine does."""
        for put in list(self._ledger.waiting(PutJob)):
            message = Put(put.number, put.keys, put.slots, put.is_prompt)
            if self.porter is not None and self.porter.ask(message):
                self._ledger.begin(put.number, monotonic())
            else:
                self._ledger.end_here(Ended(put.number, "there is no store now", no_room=True))

    def take_ended(self) -> list[int]:
        filled: list[int] = []
        if self.porter is not None:
            counters.offload_remote_up.put(self.porter.is_up)
            if self.porter.error is not None:
                fuse.of(FUSE).blow(f"its thread ended with {self.porter.error}")
            for number in self.porter.take_gone():
                self._ledger.end_here(Ended(number, ""))
            for message, answer in self.porter.take_answered():
                self._ledger.end_here(self._ended(message, answer))
                if isinstance(message, Get) and not answer.error:
                    filled += whole_slots(message.slots, answer)
        self.send_puts()
        return filled

    def _ended(self, message: Message, answer: Outcomes) -> Ended:
        job = self._ledger[message.number].job
        if answer.error:
            return Ended(job.number, answer.error)
        outcomes = list(zip(job.slots, answer.outcomes, strict=True))
        bytes_, seconds = SUMS[isinstance(message, Put)]
        bytes_.add(len(whole_slots(job.slots, answer)) * self._block_bytes)
        seconds.add(answer.seconds)
        if isinstance(message, Get):
            bad = tuple(slot for slot, outcome in outcomes if outcome is Outcome.BAD)
            lost = tuple(slot for slot, outcome in outcomes if outcome is not Outcome.WHOLE)
            unsure = tuple(slot for slot, outcome in outcomes if outcome is Outcome.FAILED)
            return Ended(job.number, "", bad, lost_slots=lost, unsure_slots=unsure)
        failed = [outcome for _, outcome in outcomes if outcome is not Outcome.WHOLE]
        if not failed:
            return Ended(job.number, "")
        why = f"{len(failed)} of {len(job.slots)} blocks are {ENDS[failed[0] - 1]}"
        return Ended(job.number, why, no_room=set(failed) == {Outcome.FULL})


def whole_slots(slots: Sequence[int], answer: Outcomes) -> list[int]:
    return [slot for slot, outcome in zip(slots, answer.outcomes, strict=True) if outcome is Outcome.WHOLE]


REMEDY = "pip install 'trtllm-kvfix[mooncake]', or mooncake-transfer-engine-non-cuda where there is no CUDA"


def worker_of(
    llm_args: Any,
    settings: OffloadSettings,
    link: Link,
    ranks: Ranks,
    make_pool: MakePool,
    *,
    at_start: Ranks,
    saved_max: int | None,
    report: TierReport,
) -> OffloadWorker:
    """A worker side that carries blocks to the store and back.

    A master that does not answer is no reason to refuse: it may come, and until then there is no remote tier.
    """
    require_store(settings)
    identity: Mapping[str, str] | None = None
    try:
        identity = parts_of(llm_args, settings.remote)
    except Unnameable as error:
        log.error("there is no remote tier, since its blocks would have no name: %s", error)
    carrier = RemoteCarrier(settings, link, ranks, at_start=at_start, report=report, identity=identity)
    return OffloadWorker(
        settings, link, ranks, make_pool, at_start=at_start, saved_max=saved_max, report=report, carrier=carrier
    )


def require_store(settings: OffloadSettings) -> None:
    remote = settings.remote
    if remote.master is None:
        raise SettingsError(
            "kvfix.offload.remote.kind is mooncake, but kvfix.offload.remote.master is not set; write where "
            "mooncake_master listens, such as 10.0.0.5:50051"
        )
    if find_spec("mooncake") is None:
        raise SettingsError(f"kvfix.offload.remote.kind is mooncake, and its client is not installed; {REMEDY}")


SUMS = {
    False: (counters.offload_remote_fetched_bytes, counters.offload_remote_fetch_seconds),
    True: (counters.offload_remote_put_bytes, counters.offload_remote_put_seconds),
}


def left_until(until: float) -> float:
    return max(until - monotonic(), 0.0)
