"""The GIL is released while the core works or waits for its lock, and is never needed while the lock is held."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests import fresh
from tests.core.calls import Call
from trtllm_kvfix.native import (
    BlockManager,
    BlockManagerConfig,
    Marks,
    SequenceRequest,
    TransferLane,
    block_hashes,
    open_device,
)

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = 300_000
LOCKED_S = 0.001  # far more than a call works before it has the lock, and far less than it then works
ATTEMPTS = 100  # a busy machine may spoil most; a held GIL spoils all


@pytest.fixture(scope="module")
def large() -> BlockManager:
    """Large enough that a call over all blocks works for many milliseconds."""
    m = BlockManager(BlockManagerConfig(tokens_per_block=1, blocks_primary=BLOCKS))
    m.add_sequence(SequenceRequest(1, np.arange(BLOCKS - 10, dtype=np.int32)))
    m.store_context_blocks(1, BLOCKS - 10)
    return m


@pytest.fixture(scope="module")
def long_request() -> SequenceRequest:
    return SequenceRequest(2, np.arange(BLOCKS, dtype=np.int32))


@pytest.mark.usefixtures("stubborn_threads")
@pytest.mark.parametrize("name", ["digest", "check_invariants", "analyze_prefix_reuse", "block_hashes"])
def test_python_runs_beside_nearly_all_of_a_long_call(
    name: str, large: BlockManager, long_request: SequenceRequest
) -> None:
    longest = SequenceRequest(3, np.zeros(2**25, dtype=np.int32))
    large_blocks = BlockManagerConfig(tokens_per_block=2**15, blocks_primary=1)
    calls: dict[str, Callable[[], object]] = {
        "digest": large.digest,
        "check_invariants": large.check_invariants,
        "analyze_prefix_reuse": lambda: large.analyze_prefix_reuse(long_request),
        "block_hashes": lambda: block_hashes(longest, large_blocks),
    }
    for _ in range(ATTEMPTS):
        call = Call(calls[name])
        beside_us = not call.returned
        while beside_us and not call.asleep():
            pass  # and keeps the GIL: what the call does here, it does without
        without_s = call.worked_s() if beside_us else 0.0
        call.join()
        if without_s > 0.9 * call.worked_s():
            return
    pytest.fail(f"{name} worked for {without_s:.3f} s of {call.worked_s():.3f} without the GIL")


WAITERS: dict[str, Callable[[BlockManager], object]] = {
    "add_sequence_batch": lambda m: m.add_sequence_batch([]),
    "add_sequence": lambda m: m.add_sequence(SequenceRequest(1, [1])),
    "analyze_prefix_reuse": lambda m: m.analyze_prefix_reuse(SequenceRequest(3, [7])),
    "add_token": lambda m: m.add_token(9),
    "add_tokens": lambda m: m.add_tokens([], []),
    "decode_batch": lambda m: m.decode_batch([]),
    "rewind_kv_cache": lambda m: m.rewind_kv_cache(1, 0),
    "store_context_blocks": lambda m: m.store_context_blocks(1, 1),
    "remove_sequence": lambda m: m.remove_sequence(9),
    "commit_and_get_block_hashes": lambda m: m.commit_and_get_block_hashes(9),
    "truncate_blocks": lambda m: m.truncate_blocks(SequenceRequest(3, [7]), 0),
    "suspend_sequence": lambda m: m.suspend_sequence(9),
    "resume_sequence": lambda m: m.resume_sequence(9),
    "blocks_to_resume": lambda m: m.blocks_to_resume(9),
    "pin_blocks_by_id": lambda m: m.pin_blocks_by_id([]),
    "unpin_blocks_by_id": lambda m: m.unpin_blocks_by_id([]),
    "get_cache_block_ids": lambda m: m.get_cache_block_ids(9),
    "get_batch_cache_block_ids": lambda m: m.get_batch_cache_block_ids([]),
    "copy_batch_block_offsets": lambda m: m.copy_batch_block_offsets(np.zeros((1, 1, 2, 1), dtype=np.int32), [], 1, 0),
    "blocks_to_admit": lambda m: m.blocks_to_admit(SequenceRequest(3, [7])),
    "blocks_to_grow": lambda m: m.blocks_to_grow([9], [1]),
    "free_blocks_without": lambda m: m.free_blocks_without([]),
    "get_token_count": lambda m: m.get_token_count(9),
    "get_num_front_blocks_removed": lambda m: m.get_num_front_blocks_removed(9),
    "get_priority_by_block_id": lambda m: m.get_priority_by_block_id(10**9),
    "take_transfers": lambda m: m.take_transfers(),
    "complete": lambda m: m.complete(10**9),
    "fail": lambda m: m.fail(10**9),
    "advance_time": lambda m: m.advance_time(0),
    "refresh_blocks": lambda m: m.refresh_blocks(),
    "get_kv_cache_stats": lambda m: m.get_kv_cache_stats(),
    "get_request_stats": lambda m: m.get_request_stats(1),
    "get_latest_events": lambda m: m.get_latest_events(),
    "digest": lambda m: m.digest(),
}


def test_no_method_is_forgotten_here() -> None:
    methods = {name for name in dir(BlockManager) if not name.startswith("_")} - {"config"}
    assert methods - set(WAITERS) == {"check_invariants", "reset_reuse_state"}


@pytest.mark.usefixtures("stubborn_threads")
@pytest.mark.parametrize("name", WAITERS)
def test_waiting_for_the_lock_does_not_stop_python(name: str, large: BlockManager) -> None:
    assert python_runs_beside(large, WAITERS[name])


def python_runs_beside(m: BlockManager, wait: Callable[[BlockManager], object]) -> bool:
    """Whether this thread came to run in a call that waited for the lock, while the thread with the lock had much left
    to do."""

    def ask() -> None:
        with suppress(ValueError, KeyError):
            wait(m)

    for _ in range(ATTEMPTS):
        holds = Call(m.check_invariants)
        while not holds.returned and not holds.asleep() and holds.worked_s() < LOCKED_S:
            pass
        asks = Call(ask)
        waited, worked_s = not asks.returned, holds.worked_s()
        holds.join()
        asks.join()
        if waited and worked_s < 0.9 * holds.worked_s():
            return True
    return False


@pytest.mark.usefixtures("stubborn_threads")
def test_a_lane_goes_on_while_python_keeps_the_gil() -> None:
    """It lets go of each transfer's mark, which Python has made."""
    count = 50
    device = open_device("cpu")
    stream, marks = device.create_stream(), Marks(device, marks_max=1)
    lane = TransferLane(device, order="stream", in_flight_max=1)
    host, source = device.pinned((count,), "int32"), device.empty((1,), "int32")
    gate = device.close_gate(stream)
    device.fill_words(source.address, 1, 7, stream)
    mark = marks.set(stream)
    for number in range(count):
        assert lane.enqueue(number, [host.address + 4 * number], [source.address], [4], after=mark) == "taken"
    device.open_gate(gate)
    arrived, end = host.array, time.perf_counter() + 60
    while arrived[-1] != 7 and time.perf_counter() < end:  # calls nothing that releases the GIL
        pass
    assert arrived.tolist() == [7] * count


CALLS_BACK = """
import faulthandler, threading
import numpy as np
from tests.core.scenes import begin, manager, prompt
from trtllm_kvfix.native import SequenceRequest

faulthandler.dump_traceback_later(60, exit=True)
m = manager(primary=64, host=8)
begin(m, 1, prompt(1, 2))
done = threading.Event()

class Index:
    def __index__(self):
        m.digest()
        m.get_kv_cache_stats()
        return 1

class Tensor:
    def __dlpack__(self, **options):
        m.check_invariants()
        return np.ones(1, dtype=np.int64).__dlpack__(**options)
    def __dlpack_device__(self):
        m.get_request_stats(1)
        return (1, 0)

def busy(first):
    request_id = first
    while not done.is_set():
        request_id += 1
        m.add_sequence(SequenceRequest(request_id, prompt(first, 9)))
        m.remove_sequence(request_id)
        m.check_invariants()

threads = [threading.Thread(target=busy, args=(10**6 * i,)) for i in (1, 2, 3)]
for thread in threads:
    thread.start()
for _ in range(500):
    m.add_tokens([Index()], [Index()], [Index()])
    m.add_tokens(Tensor(), Tensor(), Tensor())
    m.decode_batch(Tensor()).add_tokens(Tensor())
    m.get_batch_cache_block_ids([Index()])
    m.rewind_kv_cache(1, 3)
done.set()
for thread in threads:
    thread.join()
m.check_invariants()
print("alive")
"""


def test_arguments_that_call_the_manager_deadlock_with_no_thread() -> None:
    command = [sys.executable, "-c", CALLS_BACK]
    ran = fresh.run(command, cwd=ROOT)
    assert (ran.returncode, ran.stdout.strip()) == (0, "alive"), ran.stderr
