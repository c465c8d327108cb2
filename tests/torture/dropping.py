"""A program whose children drop, one by one, whatever of ours reaches a device or takes a lock when it ends:
`python -m tests.torture.dropping [cpu|cuda] [FORKS]`. Threads of the parent use all of it meanwhile."""

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.torture.forking import exit_code_of
from trtllm_kvfix import native
from trtllm_kvfix.fixes.concurrent_pins.fix import Turns
from trtllm_kvfix.fixes.staged_offsets_v2 import fix as staged_offsets_v2
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.native import OffsetLaunch, OffsetStager, PoolCopies, PoolCopiesByTensor
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging import MovableMark, current_place, on_stream, stream_marks
from trtllm_kvfix.staging.place import find_torch
from trtllm_kvfix.staging.read_back import ReadBack
from trtllm_kvfix.staging.stagers import Stagers

SHAPE = (1, 4, 2, 8)
SLOT_BYTES = 82


class Things:
    """One of each, in use."""

    def __init__(self, device_name: str) -> None:
        device = native.open_device(device_name)
        stream = device.create_stream()
        manager = native.BlockManager(native.BlockManagerConfig(tokens_per_block=4, blocks_primary=64))
        manager.add_sequence(native.SequenceRequest(1, list(range(16))))
        marks = native.Marks(device, marks_max=4)
        lane = native.TransferLane(device, order="stream")
        target = device.empty(SHAPE, "int32")
        table = device.pinned(SHAPE, "int32")
        stager = OffsetStager(layout="v1", num_pools=1, rows_max=4, blocks_max=8, device=device)
        copies = PoolCopies(target, table.array, stager, lambda: stream, Fuse("staged-offsets-v1"), lends=True)
        by_tensor, fuse = PoolCopiesByTensor(lambda *_: copies), Fuse("staged-offsets-v1")
        index = native.TierIndex(8, tokens_per_block=4)
        turns = Turns()
        with on_stream(device, stream):
            place = current_place()
            mark = MovableMark(device, stream)
            mark.record()
            behind_the_stream = stream_marks()
            behind_the_stream.record()
            stager.ship(target, np.zeros(SHAPE, np.int32), 2, stream=stream)
            lot = staged_offsets_v2.Lot(device.pinned((4,), "int32"), device.pinned((4,), "int32"))
            staged_offsets_v2.keep_until_read(lot, stream)
        graph_memory = device.pinned((4,), "int32")
        self.kept: dict[str, Any] = {
            "stream": stream,
            "manager": manager,
            "requests": native.RequestBooks(manager),
            "native mark": marks.set(stream),
            "marks": marks,
            "lane": lane,
            "copies": copies,
            "copies by tensor": by_tensor,
            "call": native.CopyingCall(by_tensor, fuse, blocking=print, finish=print, finish_every=False),
            "selection": copies[0, :1],
            "launch": OffsetLaunch(lambda *_: stager, Fuse("staged-offsets-v2")),
            "stager": stager,
            "engine": native.CopyEngine(device),
            "pool": native.HostPool(device, host_bytes=1 << 16, block_bytes=4096),
            "ring": native.FlightRing(np.zeros(flight.SLOTS * SLOT_BYTES, np.uint8)),
            "target": target,
            "view": table.array,
            "table": table,
            "index": index,
            "turns": turns,
            "turn lock": native.TurnLock(),
            "mark": mark,
            "stream marks": behind_the_stream,
            "digests": device.digest_ring(0, [(target.address, 64, 2, 1)], places=3, key=0),
            "place of threads": native.PlaceOfThread(find_torch),
            "place": place,
            "graph memory": graph_memory,
            "read back": ReadBack("staged-offsets-v1", 2),
            "stagers": Stagers(),
            "fuse": Fuse("token-budget"),
            "device": device,
        }

    def uses(self) -> list[Callable[[], object]]:
        """Calls of threads that go on in the parent."""
        kept = self.kept
        device, turns = kept["device"], kept["turns"]

        def mark_and_wait() -> None:
            kept["marks"].set(kept["stream"])
            device.synchronize(kept["stream"])  # or its queue grows faster than the stream works it off

        noted = turns.guarded(lambda: flight.note(flight.SHIPPED, 1, 1))
        return [
            lambda: device.destroy_event(device.create_event()),
            mark_and_wait,
            noted,
            noted,
            kept["lane"].stats,
            lambda: kept["stager"].ship(kept["target"], kept["view"], 1, stream=kept["stream"]),
            kept["manager"].digest,
            kept["index"].stats,
        ]


class Users:
    """Threads of the parent, in the middle of their calls whenever it forks. They rest while a child ends: it needs the
    processor more."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self._over = False
        self._going = threading.Event()
        self._made = [0] * len(calls)
        self._threads = [threading.Thread(target=self._use, args=each) for each in enumerate(calls)]
        for thread in self._threads:
            thread.start()

    def _use(self, number: int, call: Callable[[], object]) -> None:
        while not self._over:
            self._going.wait()
            call()
            self._made[number] += 1

    def go(self) -> None:
        before = list(self._made)
        self._going.set()
        while any(now == was for now, was in zip(self._made, before, strict=True)):
            os.sched_yield()

    def rest(self) -> None:
        self._going.clear()

    def end(self) -> None:
        self._over = True
        self._going.set()
        for thread in self._threads:
            thread.join()


def drop_everything(things: Things) -> None:
    signal.alarm(60)
    for name in list(things.kept):
        things.kept.pop(name)
        gc.collect()
    flight.note(flight.SHIPPED, 1, 1)
    os._exit(0)


def main(device_name: str = "cpu", forks: str = "20") -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # from 3.12 on of each child of several threads
    gc.freeze()  # children collect what comes from here on
    things = Things(device_name)
    users = Users(things.uses())
    codes: list[int | None] = []
    for number in range(int(forks)):
        users.go()
        child = os.fork()
        if child == 0:
            if number % 2:
                sys.exit(0)  # the interpreter drops them as it ends
            drop_everything(things)
        users.rest()
        codes.append(exit_code_of(child))
    users.end()
    sys.stdout.write(f"hung {codes.count(None)} failed {sum(1 for code in codes if code)} of {len(codes)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
