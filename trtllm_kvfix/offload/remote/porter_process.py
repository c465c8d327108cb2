"""The process that has the store's client: `python -m trtllm_kvfix.offload.remote.porter_process SPEC`.

`PorterHandle` (remote/worker.py) starts it, and nothing here runs inside an engine. The process ends when the engine
does, which closes its socket. It ends at once, because the client's own end may wait for peers.
"""

import ctypes
import json
import math
import mmap
import os
import queue
import signal
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.log import described
from trtllm_kvfix.native import crc32c
from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.remote.keys import keys_behind, object_name
from trtllm_kvfix.offload.remote.messages import (
    OBJECTS_MAX,
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

# Lookups in the store, as the porter makes them: for many prompts at a time, and in parts.

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


# Answers of Mooncake Store, seen with 0.3.13: what is there already is put with success, and costs no transfer.
NO_SPACE = -200
OTHER_SIZE = -600  # the object is larger than the buffer, and nothing was moved
NOT_FOUND = -704
LEASE_OVER = -707  # all has come, but the store might have evicted it on the way: the seal knows
LOCAL_BUFFER_BYTES = 16 << 20  # of the client itself; blocks do not pass it
METADATA = "P2PHANDSHAKE"  # clients exchange the addresses of their memory; there is no further service


class StoreError(Exception):
    """There is no store to be asked."""


class Store(Protocol):
    """A store of blocks as the porter needs it.

    Every call may take as long as the store likes. Payloads lie in registered memory, all of one size.
    """

    def register(self, address: int, nbytes: int) -> None: ...
    def exist(self, names: Sequence[str]) -> list[bool]: ...
    def put(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]: ...
    def get(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]: ...
    def remove(self, names: Sequence[str]) -> None: ...


class MooncakeStore:
    """A client of Mooncake Store. With `segment_bytes` it brings memory that all clients may use."""

    def __init__(self, *, master: str, protocol: str, host: str, segment_bytes: int = 0) -> None:
        self._client: Any = import_module("mooncake.store").MooncakeDistributedStore()
        code = self._client.setup(host, METADATA, segment_bytes, LOCAL_BUFFER_BYTES, protocol, "", master)
        if code:
            raise StoreError(f"Mooncake's client does not reach the master at {master} over {protocol}: code {code}")

    def register(self, address: int, nbytes: int) -> None:
        code = self._client.register_buffer(address, nbytes)
        if code:
            raise StoreError(f"Mooncake does not register {nbytes} bytes of the host pool: code {code}")

    def exist(self, names: Sequence[str]) -> list[bool]:
        codes = self._client.batch_is_exist(list(names))
        if len(codes) != len(names):
            raise StoreError(f"Mooncake's master was asked about {len(names)} objects and answers for {len(codes)}")
        if any(code < 0 for code in codes):
            raise StoreError(f"Mooncake's master does not answer: code {min(codes)}")
        return [code == 1 for code in codes]

    def put(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        codes = self._client.batch_put_from(list(names), list(addresses), [nbytes] * len(names))
        known = {0: Outcome.WHOLE, NO_SPACE: Outcome.FULL}
        return [known.get(code, Outcome.FAILED) for _, code in zip(names, codes, strict=True)]

    def get(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        codes = self._client.batch_get_into(list(names), list(addresses), [nbytes] * len(names))
        return [outcome_of(code, nbytes) for _, code in zip(names, codes, strict=True)]

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._client.remove(name, True)  # whoever reads it finds that it is bad


def outcome_of(code: int, nbytes: int) -> Outcome:
    if code == nbytes:
        return Outcome.WHOLE
    if code == LEASE_OVER:
        return Outcome.LATE
    if code == NOT_FOUND:
        return Outcome.MISSING
    return Outcome.BAD if code >= 0 or code == OTHER_SIZE else Outcome.FAILED


MAGIC = 0x6B76_6631
LAYOUT = struct.Struct("<IIQ16s")  # magic, CRC-32C, bytes of the payload, beginning of its key
assert LAYOUT.size == SEAL_BYTES


class Seals:
    """A seal travels behind a payload, and holds its checksum and the name of its block.

    A store may give the memory of an object that it evicts to another one while somebody reads it. What arrives then is
    whole, and somebody else's: so a seal names its block. Each slot of the pool has a seal directly behind the block,
    so that both are one buffer to the store.
    """

    def __init__(self, pool: NDArray[np.uint8], block_bytes: int, slot_bytes: int) -> None:
        if slot_bytes < block_bytes + SEAL_BYTES:
            raise ValueError(f"slots of {slot_bytes} bytes have no room for {block_bytes} and a seal of {SEAL_BYTES}")
        self._pool, self._bytes = pool, pool.data
        self._block_bytes, self._slot_bytes = block_bytes, slot_bytes

    def write(self, keys: Sequence[bytes], slots: Sequence[int]) -> None:
        for key, slot, crc in zip(keys, slots, self._checksums(slots), strict=True):
            LAYOUT.pack_into(self._bytes, self._of(slot), MAGIC, crc, self._block_bytes, key[:16])

    def clear(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._bytes[self._of(slot) : self._of(slot) + SEAL_BYTES] = bytes(SEAL_BYTES)

    def hold(self, keys: Sequence[bytes], slots: Sequence[int]) -> list[bool]:
        """Whether each slot holds what its key stands for."""
        wanted = zip(keys, slots, self._checksums(slots), strict=True)
        return [
            LAYOUT.unpack_from(self._bytes, self._of(slot)) == (MAGIC, crc, self._block_bytes, key[:16])
            for key, slot, crc in wanted
        ]

    def _of(self, slot: int) -> int:
        return slot * self._slot_bytes + self._block_bytes

    def _checksums(self, slots: Sequence[int]) -> list[int]:
        starts = np.asarray(slots, np.uint64) * np.uint64(self._slot_bytes)
        return crc32c(self._pool, starts, self._block_bytes)


BATCH_BYTES = 32 << 20  # of one call: while one batch is checked, the next one travels
# Mooncake's client queues 1,024 transfers to a node and lets as many more wait for a second. What is beyond that, or
# waits longer, fails. So calls of both directions together stay within the queue.
BATCH_BLOCKS_MAX = 512
MASTER_S_MAX = 2.0
# Mooncake's calls ask in a loop, without a pause, whether their bytes have come. That loop would take a core from the
# threads that move and check them: it gets half of a thread's share. Less would starve a call where others want the
# cores, since it also begins and ends the transfers.
NICER = 3
# Checksums wait for calls, not calls for checksums: the check of one batch would keep the core on which the next call
# is to begin. Where nothing else is to be done, as after the last call, idle cores share them.
SEALERS, SEALERS_NICER = 4, NICER + 1
NICE_MAX = 19  # the system's
REMOVED_MAX = 256  # objects, by one porter
# A lookup may have to wait for the interpreter while a nicer thread has it. On a busy machine that one is rarely on a
# core, so the five milliseconds of Python's default, which it would need there, are many more by the clock.
SWITCH_S = 0.0005


class EnginePool:
    """The engine's host pool, which this process has mapped too. A block and its seal are one payload to the store."""

    def __init__(self, spec: Spec) -> None:
        self._bytes = np.frombuffer(mmap.mmap(spec.pool, spec.slots * spec.slot_bytes), np.uint8)
        self._slot_bytes = spec.slot_bytes
        self.payload_bytes = spec.block_bytes + SEAL_BYTES
        self.seals = Seals(self._bytes, spec.block_bytes, spec.slot_bytes)

    def register_with(self, store: Store) -> None:
        store.register(self._bytes.ctypes.data, self._bytes.nbytes)

    def addresses(self, slots: Sequence[int]) -> list[int]:
        first = self._bytes.ctypes.data
        return [first + slot * self._slot_bytes for slot in slots]


class PorterProcess:
    """Takes an engine's messages, and answers each once the store has done what it asks for."""

    def __init__(self, spec: Spec, connection: Connection, store: Store) -> None:
        self._spec = spec
        self._connection = connection
        self._answering = threading.Lock()  # threads answer, and one connection takes one answer at a time
        self._store = store
        self._pool = EnginePool(spec)
        self._pool.register_with(store)
        # Two calls of one direction at once take longer than one behind the other: each direction has one thread.
        self._gets = threads(1, nicer_by=NICER)
        self._checksums = threads(SEALERS, nicer_by=SEALERS_NICER)
        self._removals = threads(1, nicer_by=NICER)  # nobody waits for them
        self._removed = 0  # about: checks add to it in several threads
        self._puts = PutQueue(self._blocks_at_once, self._seal, self._put)
        self._looks = LookQueue(spec.ranks, self._exist, self._tell)

    def run(self) -> None:
        """Runs until the engine closes its end."""
        with suppress(EOFError, OSError):
            while True:
                self._take(self._connection.recv())

    def _take(self, message: Message) -> None:
        if isinstance(message, Look):
            self._looks.add(message)
            return
        whole = MessageBlocks(message.number, len(message.keys), self._tell)
        size = self._blocks_at_once
        for batch in slices(0, len(message.keys), size):
            if isinstance(message, Put):
                self._puts.add(PutPart(message, batch, whole))
                continue
            self._gets.submit(self._get, message, batch, whole)

    @property
    def _blocks_at_once(self) -> int:
        return min(max(BATCH_BYTES // self._spec.block_bytes, 1), BATCH_BLOCKS_MAX)

    def _exist(self, names: Sequence[str]) -> list[bool]:
        there = self._store.exist(names)
        self._moves_on(Look)
        return there

    def _seal(self, keys: Sequence[bytes], slots: Sequence[int]) -> list[Future[None]]:
        """Have threads seal the blocks."""
        parts = slices(0, len(keys), part_of(self._blocks_at_once))
        return [self._checksums.submit(self._pool.seals.write, keys[part], slots[part]) for part in parts]

    def _put(self, keys: Sequence[bytes], slots: Sequence[int]) -> list[Outcome]:
        outcomes = self._store.put(self._names(keys), self._pool.addresses(slots), self._pool.payload_bytes)
        self._moves_on(Put)
        return outcomes

    def _get(self, get: Get, batch: slice, whole: "MessageBlocks") -> None:
        """What has come is checked by others while the next batch travels: a check waits for nothing, so it keeps no
        thread from those that seal."""
        try:
            come = self._come(get.keys[batch], get.slots[batch])
        except Exception as error:
            whole.done(batch, [], described(error))
            return
        for part in slices(batch.start, batch.stop, part_of(self._blocks_at_once)):
            outcomes = come[part.start - batch.start : part.stop - batch.start]
            self._checksums.submit(whole.do, part, self._check, get, outcomes)

    def _come(self, keys: Sequence[bytes], slots: Sequence[int]) -> list[Outcome]:
        self._pool.seals.clear(slots)
        outcomes = self._store.get(self._names(keys), self._pool.addresses(slots), self._pool.payload_bytes)
        self._moves_on(Get)
        return outcomes

    def _check(self, part: slice, get: Get, come: list[Outcome]) -> list[Outcome]:
        keys, slots = get.keys[part], get.slots[part]
        outcomes = self._judged(keys, slots, come)
        bad = [at for at, outcome in enumerate(outcomes) if outcome is Outcome.BAD]
        if bad:  # rare: it may have gone wrong on its way
            named = [keys[at] for at in bad], [slots[at] for at in bad]
            again = self._judged(*named, self._gets.submit(self._come, *named).result())
            for at, outcome in zip(bad, again, strict=True):
                outcomes[at] = outcome
            self._remove([key for key, outcome in zip(named[0], again, strict=True) if outcome is Outcome.BAD])
        return outcomes

    def _judged(self, keys: Sequence[bytes], slots: Sequence[int], come: Sequence[Outcome]) -> list[Outcome]:
        wrong = {Outcome.WHOLE: Outcome.BAD, Outcome.LATE: Outcome.MISSING}
        right = {Outcome.LATE: Outcome.WHOLE}
        held = self._pool.seals.hold(keys, slots)
        return [(right if holds else wrong).get(outcome, outcome) for outcome, holds in zip(come, held, strict=True)]

    def _remove(self, keys: Sequence[bytes]) -> None:
        """Nobody could use these objects, and nobody could put them anew while they are there. A porter that finds many
        is at fault itself, as with bad memory, and removes no more of what others share."""
        keys = keys[: REMOVED_MAX - self._removed]
        self._removed += len(keys)
        if keys:
            self._removals.submit(self._store.remove, self._names(keys))

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return [object_name(key, self._spec.rank, self._spec.ranks) for key in keys]

    def _moves_on(self, kind: type[Message]) -> None:
        self._tell(CallOver(kind.__name__))

    def _tell(self, answer: Reply) -> None:
        with self._answering, suppress(OSError):
            self._connection.send(answer)


class MessageBlocks:
    """The blocks of one message. Whoever does the last of them answers it."""

    def __init__(self, number: int, blocks: int, tell: Callable[[Outcomes], None]) -> None:
        self._number, self._tell = number, tell
        self._lock = threading.Lock()  # guards what follows
        self._outcomes = [Outcome.FAILED] * blocks
        self._left = blocks
        self._error = ""
        self._since = monotonic()

    def do(self, part: slice, work: Callable[..., list[Outcome]], *args: Any) -> None:
        try:
            self.done(part, work(part, *args))
        except Exception as error:
            self.done(part, [], described(error))

    def done(self, part: slice, outcomes: Sequence[Outcome], error: str = "") -> None:
        with self._lock:
            if not error:
                self._outcomes[part] = outcomes
            self._error = self._error or error
            self._left -= part.stop - part.start
            is_last = not self._left
        if is_last:
            self._tell(Outcomes(self._number, tuple(self._outcomes), self._error, monotonic() - self._since))


class PutPart(NamedTuple):
    """A part of a message that one call of the store can take."""

    put: Put
    part: slice
    whole: MessageBlocks

    @property
    def blocks(self) -> int:
        return int(self.part.stop - self.part.start)


class PutBatch(NamedTuple):
    """Parts that one call takes together, and the seals that are being made for them."""

    parts: list[PutPart]
    keys: list[bytes]
    slots: list[int]
    sealing: list[Future[None]]


class PutQueue:
    """What waits to be put: prompts first, and of each kind what came first. A call takes what waits, of as many
    messages as fit, since each request that generates fills a block at a time.

    One thread calls the store; while it does, the next batch is sealed.
    """

    def __init__(
        self,
        blocks_max: int,
        seal: Callable[[Sequence[bytes], Sequence[int]], list[Future[None]]],
        call: Callable[[Sequence[bytes], Sequence[int]], list[Outcome]],
    ) -> None:
        self._blocks_max, self._seal, self._call = blocks_max, seal, call
        self._serial = count()
        self._waiting: queue.PriorityQueue[tuple[bool, int, PutPart]] = queue.PriorityQueue()
        threading.Thread(target=self._run, args=(nice_here() + NICER,), name="puts", daemon=True).start()

    def add(self, part: PutPart) -> None:
        self._waiting.put((not part.put.is_prompt, next(self._serial), part))

    def _run(self, nice: int) -> None:
        be_nice(nice)
        ahead: PutBatch | None = None
        while True:
            batch = ahead or self._sealed([self._waiting.get()])
            ahead = self._next()
            try:
                for seal in batch.sealing:
                    seal.result()
                outcomes, error = self._call(batch.keys, batch.slots), ""
            except Exception as raised:
                outcomes, error = [], described(raised)
            first = 0
            for part in batch.parts:
                part.whole.done(part.part, outcomes[first : first + part.blocks], error)
                first += part.blocks

    def _next(self) -> PutBatch | None:
        with suppress(queue.Empty):
            return self._sealed([self._waiting.get_nowait()])
        return None

    def _sealed(self, taken: list[tuple[bool, int, PutPart]]) -> PutBatch:
        """Take as many more parts as fit, and have them all sealed."""
        blocks = taken[0][-1].blocks
        with suppress(queue.Empty):
            while blocks < self._blocks_max:
                more = self._waiting.get_nowait()
                if blocks + more[-1].blocks > self._blocks_max:
                    self._waiting.put(more)
                    break
                taken.append(more)
                blocks += more[-1].blocks
        parts = [part for _, _, part in taken]
        keys = [key for part in parts for key in part.put.keys[part.part]]
        slots = [slot for part in parts for slot in part.put.slots[part.part]]
        return PutBatch(parts, keys, slots, self._seal(keys, slots))


def slices(begin: int, end: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, end)) for at in range(begin, end, size)]


def part_of(batch: int) -> int:
    """Blocks of a batch that one thread seals or checks: by threes, as `crc32c` takes them."""
    return math.ceil(batch / SEALERS / 3) * 3


def threads(count: int, *, nicer_by: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, initializer=be_nice, initargs=(nice_here() + nicer_by,))


def nice_here() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def be_nice(nice: int) -> None:
    """Set this thread's, whichever thread has started it."""
    os.setpriority(os.PRIO_PROCESS, 0, min(nice, NICE_MAX))


def address_facing(master: str) -> str:
    """Raises OSError where nobody listens: Mooncake's own client would try for a minute and a half."""
    host, _, port = master.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), MASTER_S_MAX) as reached:
        return str(reached.getsockname()[0])


PR_SET_PDEATHSIG = 1


def end_with(engine: int) -> None:
    """End when the engine does. The end of the connection does not say so: a child of the engine has it as well, and
    may live on. The system sends the signal when the thread ends that has started this process; it lives as long."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != engine:  # it has ended before
        os._exit(0)


def main(spec: Spec) -> None:
    end_with(spec.engine)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine gets the signal, and ends this process
    sys.setswitchinterval(SWITCH_S)
    connection = Connection(spec.socket)
    try:
        host = spec.host or address_facing(spec.master)
        store = MooncakeStore(
            master=spec.master, protocol=spec.protocol, host=host, segment_bytes=spec.segment_bytes
        )  # fmt: skip
        if spec.pool < 0:
            connection.send(StoreState(True, host))
            with suppress(EOFError, OSError):
                connection.recv()
            return
        porter = PorterProcess(spec, connection, store)
    except Exception as error:
        connection.send(StoreState(False, described(error)))
        return
    connection.send(StoreState(True, host))
    porter.run()


if __name__ == "__main__":
    try:
        main(Spec(**json.loads(sys.argv[1])))
    finally:
        os._exit(0)
