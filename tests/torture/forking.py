"""A program that forks while it serves: `python -m tests.torture.forking C v1 input-copy-fence 40`. For a fix you may
write `all` or `none`.

One more thread keeps the device's locks busy, so that a fork finds one taken most of the time. It prints how many
children hung, or ended otherwise than they should.
"""

import gc
import multiprocessing
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

from tests.executor.test_graph_inputs import for_graphs
from tests.fixes.applied import applied, standing_in
from tests.offload.stand_in import offloading
from tests.standin.serving import Server
from tests.torture.engines import SEED, Serving, drawn, needed

HANGS_S = 30.0
held: list[Any] = []  # what a child drops
open_now = ExitStack()  # what a child leaves open: its parent closes it


def at_once() -> None:
    os._exit(0)


def after_a_collection() -> None:
    held.clear()
    gc.collect()
    os._exit(0)


def as_programs_end() -> None:
    held.extend([open_now.pop_all()])
    sys.exit(0)


def in_another_thread() -> None:
    """As libraries do that start a pool in the child."""
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    os._exit(0)


CHILDREN = (at_once, after_a_collection, as_programs_end, in_another_thread)


def exit_code_of(child: int) -> int | None:
    """None: it hung, and has been killed."""
    descriptor = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([descriptor], [], [], HANGS_S)
        if not ended:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code if ended else None
    finally:
        os.close(descriptor)


@contextmanager
def started(variant: str, manager: str, fixes: str) -> Iterator[tuple[Server, Serving]]:
    """manager: of a `Serving`, or `offload` for our connector, which has a pool, a lane with a thread, finalizers."""
    if manager == "offload":
        with offloading(variant, 64, 48) as offloads:
            yield offloads, Serving(variant, "v1")
        return
    serving = Serving(variant, manager, draft=manager == "v2-by-layer")
    ids = {"all": needed(variant), "none": []}.get(fixes, [fixes])
    with standing_in(variant), applied(ids):
        server = Server(serving.llm_args)
        yield server, serving
        server.close()


def serve_until(over: threading.Event, server: Server, serving: Serving) -> None:
    random, next_id = Random(f"{SEED} {serving} forks"), 1
    while not over.is_set():
        made = drawn(server, random, 8, next_id, alike=False)
        server.run(for_graphs(server, made) if serving.manager == "lora" else made)
        next_id += 8


def keep_locks_busy(over: threading.Event, device: Any) -> None:
    while not over.is_set():
        device.destroy_event(device.create_event())


def main(variant: str, manager: str, fixes: str, forks: str) -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # from 3.12 on of each child of several threads
    gc.freeze()  # children collect what comes from here on
    codes: list[int | None] = []
    server, serving = open_now.enter_context(started(variant, manager, fixes))
    held.append(server)
    over = threading.Event()
    threads = [
        threading.Thread(target=serve_until, args=(over, server, serving)),
        threading.Thread(target=keep_locks_busy, args=(over, server.tensors.device)),
    ]
    for thread in threads:
        thread.start()
    for number in range(int(forks)):
        child = os.fork()
        if child == 0:
            CHILDREN[number % len(CHILDREN)]()
        codes.append(exit_code_of(child))
    codes.append(exit_code_of_a_process())
    over.set()
    for thread in threads:
        thread.join()
    open_now.close()
    failed = sum(1 for code in codes if code)
    sys.stdout.write(f"hung {codes.count(None)} failed {failed} of {len(codes)}\n")


def exit_code_of_a_process() -> int | None:
    process = multiprocessing.get_context("fork").Process(target=held.clear)
    process.start()
    process.join(HANGS_S)
    if process.is_alive():
        process.kill()
        return None
    return process.exitcode


if __name__ == "__main__":
    main(*sys.argv[1:])
