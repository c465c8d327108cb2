"""A process may end while calls run, fork, and import the extension in another interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BUSY = """
import faulthandler, os, signal, threading
import numpy as np
from trtllm_kvfix import native

faulthandler.dump_traceback_later(60, exit=True)
m = native.BlockManager(native.BlockManagerConfig(tokens_per_block=1, blocks_primary=100_000))
begun = threading.Semaphore(0)

def call():
    begun.release()
    while True:
        m.digest()

for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
for _ in range(4):
    begun.acquire()
m.digest()  # whoever has begun waits for the lock, or has it
"""

# The lane is dropped by the interpreter as it ends, and then lets go of the mark of a transfer that has not begun.
ENDS_WITH_A_LANE = """
import faulthandler
from trtllm_kvfix import native

faulthandler.dump_traceback_later(60, exit=True)
device = native.open_device("cpu")
stream, marks = device.create_stream(), native.Marks(device, marks_max=2)
lane = native.TransferLane(device, order="stream", in_flight_max=1)
gate = device.close_gate(stream)
for number in (1, 2):
    lane.enqueue(number, [], [], [], after=marks.set(stream))
while lane.stats().in_flight == 0:
    pass
"""

FORKS = (
    BUSY
    + """
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            m.digest()
        except RuntimeError as error:
            code = 0 if "made in a parent" in str(error) else 2
        del m
        fresh = native.BlockManager(native.BlockManagerConfig(tokens_per_block=1, blocks_primary=4))
        fresh.check_invariants()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
m.digest()
print("served")
os._exit(0)
"""
)

FORKS_WITH_A_LANE = """
import faulthandler, os, signal
from trtllm_kvfix import native

faulthandler.dump_traceback_later(60, exit=True)
lane = native.TransferLane(native.open_device("cpu"), order="any")
child = os.fork()
if child == 0:
    signal.alarm(60)
    refused = 0
    for call in (lane.stats, lane.take_ended, lambda: lane.wait(1, 1.0), lambda: lane.close(1.0)):
        try:
            call()
        except RuntimeError as error:
            refused += "made in a parent" in str(error)
    del lane
    os._exit(0 if refused == 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert lane.close(10.0)
print("served")
"""

FORKS_WITH_A_STAGER = """
import faulthandler, os, signal
import numpy as np
from trtllm_kvfix import native

faulthandler.dump_traceback_later(60, exit=True)
device = native.open_device("cpu")
stager = native.OffsetStager(device=device, layout="v1", num_pools=1, rows_max=1, blocks_max=4)
target = device.empty([1, 1, 2, 4], "int32")
table = np.ones((1, 1, 2, 4), np.int32)
stream = device.create_stream()
gate = device.close_gate(stream)  # what is shipped stays pending
stager.ship(target, table, 1, stream=stream)
child = os.fork()
if child == 0:
    signal.alarm(60)
    refused = 0
    for call in (lambda: stager.ship(target, table, 1, stream=stream), stager.settle, stager.close):
        try:
            call()
        except RuntimeError as error:
            refused += "made in a parent" in str(error)
    del stager
    os._exit(0 if refused == 3 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
device.open_gate(gate)
stager.close()
assert (device.download(target, stream) == 1).all()
print("served")
"""

# A child has none of the pool's pages, so the addresses are free there, and the kernel gives them to what it maps next.
FORKS_WITH_A_POOL = """
import ctypes, faulthandler, mmap, os, signal
from trtllm_kvfix import native

faulthandler.dump_traceback_later(60, exit=True)
pool = native.HostPool(native.open_device("cpu"), host_bytes=1 << 22, block_bytes=4096)
begin, end = pool.address, pool.address + pool.bytes
child = os.fork()
if child == 0:
    signal.alarm(60)
    refused = 0
    try:
        pool.digests([0], 1)
    except RuntimeError as error:
        refused += "made in a parent" in str(error)
    own = [mmap.mmap(-1, 1 << 20) for _ in range(64)]
    at = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in own]
    inside = sum(begin <= each < end for each in at)
    del pool
    for each in own:
        each[0] = 7  # ends the child, were it given back with the pool
    os._exit(0 if refused and inside else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(pool.digests([0], 1)) == 1
print("served")
"""

# The signal comes while a call runs or waits for the lock; Python sees it when the call has ended.
INTERRUPTED = """
import faulthandler, os, signal, threading
from trtllm_kvfix import native

faulthandler.dump_traceback_later(60, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job that runs in the background ignores it
m = native.BlockManager(native.BlockManagerConfig(tokens_per_block=1, blocks_primary=100_000))
begun = threading.Semaphore(0)
interrupts = 0

def interrupt():
    begun.acquire()
    os.kill(os.getpid(), signal.SIGINT)

for calls in (m.check_invariants, m.digest, lambda: m.add_sequence(native.SequenceRequest(1, [1] * 200_000))):
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        begun.release()
        while True:
            try:
                calls()
            except native.OutOfBlocks:
                pass
    except KeyboardInterrupt:
        interrupts += 1
    thread.join()
m.add_sequence(native.SequenceRequest(2, [1, 2, 3]))  # nobody holds the lock
m.remove_sequence(2)
m.check_invariants()
assert m.get_kv_cache_stats().windows[0].primary.owned == 0
assert interrupts == 3, interrupts
print("served")
"""

SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
from trtllm_kvfix import native

inside = '''
try:
    from trtllm_kvfix import _core
except ImportError as error:
    assert "main interpreter" in str(error), error
else:
    raise AssertionError("imported")
'''
for _ in range(2):
    other = interpreters.create()
    assert interpreters.run_string(other, inside) is None
    interpreters.destroy(other)
m = native.BlockManager(native.BlockManagerConfig(tokens_per_block=1, blocks_primary=4))
m.add_sequence(native.SequenceRequest(1, [1, 2]))
try:
    m.add_token(2)
except native.UnknownRequest:
    print("served")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("attempt", range(3))
def test_a_process_may_end_while_daemon_threads_are_inside_calls(attempt: int) -> None:
    ran = run(BUSY)
    assert (ran.returncode, ran.stderr) == (0, ""), attempt


def test_a_process_may_end_while_a_lane_has_transfers() -> None:
    ran = run(ENDS_WITH_A_LANE)
    assert (ran.returncode, ran.stderr) == (0, "")


BESIDE_FORKS = {
    "manager": FORKS,
    "lane": FORKS_WITH_A_LANE,
    "stager": FORKS_WITH_A_STAGER,
    "pool": FORKS_WITH_A_POOL,
}


@pytest.mark.parametrize("script", BESIDE_FORKS.values(), ids=BESIDE_FORKS)
def test_a_child_is_refused_what_its_parent_made_and_hangs_nowhere(script: str) -> None:
    ran = run(script)
    assert (ran.returncode, ran.stdout.strip()) == (0, "served"), ran.stderr


def test_an_interrupt_in_a_long_call_leaves_a_manager_that_serves() -> None:
    ran = run(INTERRUPTED)
    assert (ran.returncode, ran.stdout.strip()) == (0, "served"), ran.stderr


def test_a_subinterpreter_is_refused_and_the_main_one_goes_on() -> None:
    ran = run(SUBINTERPRETER)
    assert (ran.returncode, ran.stdout.strip()) == (0, "served"), ran.stderr
