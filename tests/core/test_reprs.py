"""Every bound class says in one line what it holds; none leaves it at its address."""

from collections.abc import Iterator
from enum import Enum

import numpy as np
import pytest

from trtllm_kvfix import native
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging import stream_marks
from trtllm_kvfix.staging.place import place_of_thread

from .scenes import begin, manager, prompt, push_to_host

SIMULATED = native.open_device("cpu")
CLASSES = [
    each
    for each in (getattr(native, name) for name in native.__all__)
    if isinstance(each, type) and not issubclass(each, Exception | Enum)
]


def of_the_manager() -> Iterator[object]:
    m = manager(primary=4, host=4, events_max=8)
    request = native.SequenceRequest(1, prompt(1, 9), retention=native.Retention([(0, 4, 50, None)]))
    yield from (m, m.config, request, native.Retention([(0, 4, 50, None)]), m.analyze_prefix_reuse(request))
    yield begin(m, 2, prompt(2, 9))
    yield from (m.get_request_stats(2), m.decode_batch([2]))
    m.remove_sequence(2)
    push_to_host(m, 3, 4)
    yield m.add_sequence_batch([native.SequenceRequest(4, prompt(2, 9))])
    batch = m.take_transfers()
    yield from (batch, batch.items[0])
    m.complete(batch.ticket)
    stats = m.get_kv_cache_stats()
    yield from (stats, stats.windows[0], stats.windows[0].primary, stats.total)
    yield m.get_latest_events()[0]


def of_requests() -> Iterator[object]:
    books = native.RequestBooks(manager(primary=4))
    books.note_who_gets_blocks()
    noted = native.Prompt(1, prompt(1, 9))
    books.add(noted, 8)
    books.settle()
    yield from (books, noted, books.take_admitted()[0], books.take_who_got_blocks()[0], books.start([4]))


def of_devices() -> Iterator[object]:
    engine = native.CopyEngine(SIMULATED)
    stager = native.OffsetStager(device=SIMULATED, layout="v1", num_pools=1, rows_max=2, blocks_max=4)
    target = SIMULATED.empty((1, 2, 2, 4), "int32")
    table = np.zeros((1, 3, 2, 4), dtype=np.int32)
    yield from (SIMULATED, SIMULATED.pinned((2, 3), "uint8"), target, engine, stager, stager.stats())
    yield from (place_of_thread, stream_marks())
    copies = native.PoolCopies(target, table, stager, lambda: 0, Fuse("staged-offsets-v1"), lends=False)
    by_tensor = native.PoolCopiesByTensor(lambda *_: copies)
    launch = native.OffsetLaunch(lambda *_: None, Fuse("staged-offsets-v2"))
    yield from (
        copies,
        copies[0, :1],
        by_tensor,
        native.CopyingCall(by_tensor, Fuse("staged-offsets-v1"), blocking=print, finish=print, finish_every=True),
        launch,
        native.DeviceTable(target, SIMULATED),
        SIMULATED.digest_ring(0, [(target.address, 64, 2, 1)], places=3, key=0),
    )
    stager.close()


def of_lanes() -> Iterator[object]:
    marks = native.Marks(SIMULATED, marks_max=2)
    pool = native.HostPool(SIMULATED, host_bytes=3 * 4096, block_bytes=4096)
    lane = native.TransferLane(SIMULATED, order="stream")
    source, target = SIMULATED.pinned((64,), "uint8"), SIMULATED.empty((64,), "uint8")
    mark = marks.set(0)
    lane.enqueue(7, [target.address], [source.address], [64], after=mark)
    lane.wait(7, 60)
    yield from (marks, mark, pool, lane, lane.stats(), lane.take_ended()[0])
    lane.close(60)
    pool.close()


def of_books() -> Iterator[object]:
    index = native.TierIndex(4, 2)
    sequence = index.open()
    index.extend(sequence, [1, 2, 3, 4])
    yield from (index.claim(sequence, 2), index, index.stats())
    lock = native.TurnLock()
    lock.guarded(lambda: None, lambda: None, 60.0)()
    yield native.FillBooks(4, 2, due_max=8, step_looks_max=8, blocks_per_step=1, seed=0)
    yield from (lock, lock.stats(), native.FlightRing(np.zeros(2 * 82, dtype=np.uint8)))


def of_replays() -> Iterator[object]:
    requests = native.ReplayRequests(1000, 100, 4)
    requests.add([1], is_spelled=True, prompt_length=4, answer=[], timestamp_ms=0, blocks_needed=2)
    scheduler = native.ReplayScheduler(
        manager(primary=8),
        requests,
        [0],
        blocks_primary=8,
        max_batch_size=2,
        max_num_tokens=64,
        tokens_per_iteration=1,
        iteration_ms=1.0,
        one_by_one=False,
    )
    while scheduler.advance(10):
        pass
    yield from (requests, scheduler, scheduler.tally, scheduler.tally.tokens)


SCENES = (of_the_manager, of_requests, of_devices, of_lanes, of_books, of_replays)


@pytest.fixture(scope="module")
def texts() -> dict[type, str]:
    return {type(each): repr(each) for scene in SCENES for each in scene()}


def test_scenes_show_every_class(texts: dict[type, str]) -> None:
    assert set(texts) == set(CLASSES)


@pytest.mark.parametrize("bound", CLASSES, ids=lambda bound: bound.__name__)
def test_says_what_it_holds(bound: type, texts: dict[type, str]) -> None:
    text = texts[bound]
    assert text.startswith(f"{bound.__name__}(")
    assert text.endswith(")")
    assert "=" in text
    assert "object at 0x" not in text
    assert "\n" not in text


def test_says_the_values(texts: dict[type, str]) -> None:
    expected = {
        native.Device: "Device(name='simulated device, seed 0', has_kernels=True)",
        native.PinnedArray: "PinnedArray(shape=[2, 3], dtype='uint8')",
        native.PoolCopies: "PoolCopies(failed=False, has_taken=False)",
        native.PoolCopiesByTensor: "PoolCopiesByTensor(known=0)",
        native.CopyingCall: "CopyingCall(finish_every=True)",
        native.PoolSelection: "PoolSelection(index=(0, slice(None, 1, None)))",
        native.OffsetLaunch: "OffsetLaunch(known=0)",
        native.DeviceTable: "DeviceTable(rows=2, blocks=4)",
        native.CopyEngine: "CopyEngine(in_flight=0, transfers_max=64, waits=0)",
        native.EndedTransfer: "EndedTransfer(job=7, bytes=64, error='')",
        native.FillBooks: "FillBooks(fills=0, live=0)",
        native.Prompt: "Prompt(request_id=1, num_tokens=9, is_private=False)",
        native.RequestBooks: "RequestBooks(live=[1])",
        native.TierClaim: "TierClaim(first=0, slots=[0, 1], declined=False)",
        native.TierIndex: "TierIndex(slots=4, tokens_per_block=2, free=2, owned=2, sequences=1)",
        native.TurnLock: "TurnLock(depth=0, queued=0, turns=1, waits=0, wait_us=0.000000)",
        native.FlightRing: "FlightRing(slots=2, noted=0)",
        native.ReplayRequests: "ReplayRequests(requests=1)",
    }
    assert {bound: texts[bound] for bound in expected} == expected
