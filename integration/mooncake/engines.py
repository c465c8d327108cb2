"""An engine as a process: the tests' executor on a simulated device, and the connector with a remote tier."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from integration.mooncake.nodes import MOONCAKE, SECONDS_MAX, until
from tests.offload.conftest import BLOCK_BYTES, Bench
from tests.offload.remote.porter_double import sealed
from tests.offload.upstream_double import Request
from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import open_device
from trtllm_kvfix.offload.remote.keys import array_of, keys_behind, object_name, start_of
from trtllm_kvfix.offload.remote.messages import LookAnswer

recomputed = counters.offload_recomputed_requests
PREFIX = "TRTLLM_KVFIX_OFFLOAD_"


class Served(NamedTuple):
    loaded: int  # tokens that it did not compute; 0 where a load failed, or was too late
    answer: list[int]
    corrupt: list[int]
    reads: int


class EngineCommands:
    """The engine's part, in its own process. Each method is a command."""

    def __init__(self) -> None:
        self.bench = Bench(open_device("cpu", 1))
        self.number = 0

    def up(self) -> bool:
        porter, holder = self.bench.worker.side.carrier.porter, self.bench.worker.side.carrier.holder
        until(lambda: porter.is_up and (holder is None or holder.is_up), f"the store is not there: {porter.text}")
        return True

    def serve(self, tokens: list[int], salt: int | None = None) -> Served:
        self.number += 1
        executor = self.bench.executor
        request = Request(self.number, list(tokens), max_new_tokens=2, cache_salt_id=salt)
        executor.forget_device_cache()
        reads, loaded, failed = executor.reads_checked, executor.loaded_tokens, recomputed.value
        executor.submit(request)
        executor.run()
        hit = executor.loaded_tokens - loaded if recomputed.value == failed else 0
        return Served(
            hit, request.tokens[len(tokens) :], list(executor.corrupt),
            executor.reads_checked - reads,
        )  # fmt: skip

    def settle(self) -> bool:
        """Waits until everything stored has also been put."""
        side = self.bench.scheduler.side
        step = self.bench.executor.step
        until(lambda: len(side.ledger) == 0, "puts do not end", step)
        return True

    def forget_host_tier(self) -> bool:
        self.settle()
        self.bench.index.drop()
        self.bench.index.check_invariants()
        return True

    def after_look(self, command: str) -> bool:
        """Have a shell command run between the answer to a look and the get that follows it."""
        store = self.bench.scheduler.side._link.store
        take_found = store.take_found

        def taking() -> list[LookAnswer]:
            found: list[LookAnswer] = take_found()
            assert not found or os.system(command) == 0
            return found

        store.take_found = taking
        return True

    def counts(self) -> dict[str, float]:
        return {name: value for name, value in counters.read().items() if "remote" in name}

    def object_at(self, tokens: list[int], block: int) -> str:
        """The object of this block of a prompt."""
        side = self.bench.scheduler.side
        start = start_of(side._link.store.root, Identity())
        return object_name(keys_behind(start, 0, array_of(tokens), side._tokens_per_block, ())[block], 0, 1)

    def porter(self) -> tuple[int, int]:
        """The porter's process, and how many there have been."""
        porter = self.bench.worker.side.carrier.porter
        return porter.process_id, porter.starts

    def blocks_in_use(self) -> int:
        """Counts the blocks of the host pool that are in use, once nothing is on its way."""
        self.settle()
        self.bench.index.check_invariants()
        return int(self.bench.index.stats().owned)

    def close(self) -> bool:
        self.bench.close()
        return True


def main(pipe: Connection, environ: dict[str, str]) -> None:
    os.environ.update(environ)
    commands = EngineCommands()
    while True:
        name, args = pipe.recv()
        try:
            pipe.send((getattr(commands, name)(*args), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))
        if name == "close":
            return


class Engine:
    def __init__(self, master: str, host_blocks: int = 256, **remote: Any) -> None:
        settings = {"kind": "mooncake", "master": master, "model": "a model", "min_reuse_blocks": 2}
        settings |= {"lookup_wait_ms": 1000} | remote  # others keep this machine busy
        environ = {f"{PREFIX}REMOTE_{name.upper()}": str(value) for name, value in settings.items()}
        environ[f"{PREFIX}HOST_BYTES"] = str(host_blocks * sealed(BLOCK_BYTES))
        if str(MOONCAKE) not in sys.path:
            sys.path.append(str(MOONCAKE))  # what a process that is spawned begins with
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=main, args=(theirs, environ), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, name: str, *args: Any) -> Any:
        self.tell(name, *args)
        return self.hear()

    def tell(self, name: str, *args: Any) -> None:
        self._pipe.send((name, args))

    def hear(self) -> Any:
        assert self._pipe.poll(2 * SECONDS_MAX), "the engine says nothing"
        found, error = self._pipe.recv()
        assert not error, error
        return found

    def serve(self, tokens: Sequence[int], salt: int | None = None) -> Served:
        served: Served = self.ask("serve", list(tokens), salt)
        assert served.corrupt == []
        return served

    def close(self) -> None:
        if self.process.is_alive():
            self.ask("close")
        self.process.join(SECONDS_MAX)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


MakeEngine = Callable[..., Engine]
