"""The process that has the store's client: `python -m trtllm_kvfix.offload.remote.program SPEC`, started by `porter`.

It ends when the engine does, which closes its socket. An end is at once: the client's own may wait for peers.
"""

import json
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import numpy as np

from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.remote.keys import object_name
from trtllm_kvfix.offload.remote.messages import Answer, Look, Message, Outcome, Put, Spec, State
from trtllm_kvfix.offload.remote.seals import Seals
from trtllm_kvfix.offload.remote.store import MooncakeStore, Store

BATCH_BYTES = 32 << 20  # of one call: while one batch is checked, the next one travels
# Mooncake's client queues 1,024 transfers to a node and lets as many more wait for a second. What is beyond that, or
# waits longer, fails. So calls of both directions together stay within the queue.
BATCH_BLOCKS_MAX = 512
MASTER_S_MAX = 2.0
# Mooncake's calls ask in a loop, without a pause, whether their bytes have come. That loop would take a core from the
# threads that move and check them: it gets half of a thread's share. Less would starve a call where others want the
# cores, since it also opens the connections.
NICER = 3


class Porter:
    def __init__(self, spec: Spec, connection: Connection, store: Store) -> None:
        self._spec, self._connection, self._store = spec, connection, store
        self._telling = threading.Lock()
        self._pool = np.frombuffer(mmap.mmap(spec.pool, spec.slots * spec.slot_bytes), np.uint8)
        self._seals = Seals(self._pool, spec.block_bytes, spec.slot_bytes)
        store.register(self._pool.ctypes.data, self._pool.nbytes)
        self._payload_bytes = spec.block_bytes + SEAL_BYTES
        # A thread each: two calls of one direction at once take longer than one behind the other.
        self._looker, self._sealer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._getter, self._putter = (ThreadPoolExecutor(1, initializer=os.nice, initargs=(NICER,)) for _ in range(2))

    def run(self) -> None:
        """Until the engine closes its end."""
        with suppress(EOFError, OSError):
            while True:
                self._take(self._connection.recv())

    def _take(self, message: Message) -> None:
        if isinstance(message, Look):
            self._looker.submit(self._look, message)
            return
        size = min(max(BATCH_BYTES // self._spec.block_bytes, 1), BATCH_BLOCKS_MAX)
        batches = [slice(at, at + size) for at in range(0, len(message.keys), size)]
        job = Job(message.number, len(batches), self._tell)
        for number, batch in enumerate(batches):
            chosen = message.keys[batch], message.slots[batch]
            if isinstance(message, Put):
                sealed = self._sealer.submit(self._seal, *chosen)
                self._putter.submit(job.do, number, self._put, sealed, *chosen)
            else:
                got = self._getter.submit(self._get, *chosen)
                self._sealer.submit(job.do, number, self._check, got, *chosen)

    def _look(self, look: Look) -> None:
        ranks = self._spec.ranks
        names = [object_name(key, rank, ranks) for key in look.keys for rank in range(ranks)]
        try:
            there = self._store.exist(names)
        except Exception as error:
            self._tell(Answer(look.number, (), f"{type(error).__name__}: {error}"))
            return
        found = (all(there[at : at + ranks]) for at in range(0, len(there), ranks))
        self._tell(Answer(look.number, tuple(Outcome.WHOLE if each else Outcome.MISSING for each in found)))

    def _seal(self, keys: Sequence[bytes], slots: Sequence[int]) -> None:
        self._seals.write(keys, slots)

    def _put(self, sealed: Future[None], keys: Sequence[bytes], slots: Sequence[int]) -> list[Outcome]:
        sealed.result()
        return self._store.put(self._names(keys), self._addresses(slots), self._payload_bytes)

    def _get(self, keys: Sequence[bytes], slots: Sequence[int]) -> list[Outcome]:
        self._seals.clear(slots)
        return self._store.get(self._names(keys), self._addresses(slots), self._payload_bytes)

    def _check(self, got: Future[list[Outcome]], keys: Sequence[bytes], slots: Sequence[int]) -> list[Outcome]:
        outcomes, holding = got.result(), self._seals.hold(keys, slots)
        return [
            Outcome.BAD if outcome is Outcome.WHOLE and not holds else outcome
            for outcome, holds in zip(outcomes, holding, strict=True)
        ]

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return [object_name(key, self._spec.rank, self._spec.ranks) for key in keys]

    def _addresses(self, slots: Sequence[int]) -> list[int]:
        first, step = self._pool.ctypes.data, self._spec.slot_bytes
        return [first + slot * step for slot in slots]

    def _tell(self, answer: Answer) -> None:
        with self._telling, suppress(OSError):
            self._connection.send(answer)


class Job:
    """Batches of one message; the last of them answers."""

    def __init__(self, number: int, batches: int, tell: Callable[[Answer], None]) -> None:
        self._number, self._tell = number, tell
        self._lock = threading.Lock()  # guards what follows
        self._outcomes: list[list[Outcome]] = [[] for _ in range(batches)]
        self._left = batches
        self._error = ""
        self._since = monotonic()

    def do(self, batch: int, work: Callable[..., list[Outcome]], *args: Any) -> None:
        outcomes, error = [], ""
        try:
            outcomes = work(*args)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        with self._lock:
            self._outcomes[batch], self._error = outcomes, self._error or error
            self._left -= 1
            is_last = not self._left
        if is_last:
            all_outcomes = tuple(outcome for each in self._outcomes for outcome in each)
            self._tell(Answer(self._number, all_outcomes, self._error, monotonic() - self._since))


def address_facing(master: str) -> str:
    """Raises OSError where nobody listens: Mooncake's own client would try for a minute and a half."""
    host, _, port = master.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), MASTER_S_MAX) as reached:
        return str(reached.getsockname()[0])


def main(spec: Spec) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine is told, and tells
    connection = Connection(spec.socket)
    try:
        host = spec.host or address_facing(spec.master)
        store = MooncakeStore(
            master=spec.master, protocol=spec.protocol, host=host, segment_bytes=spec.segment_bytes
        )  # fmt: skip
        if spec.pool < 0:
            connection.send(State(True, host))
            with suppress(EOFError, OSError):
                connection.recv()
            return
        porter = Porter(spec, connection, store)
    except Exception as error:
        connection.send(State(False, f"{type(error).__name__}: {error}"))
        return
    connection.send(State(True, host))
    porter.run()


if __name__ == "__main__":
    try:
        main(Spec(**json.loads(sys.argv[1])))
    finally:
        os._exit(0)
