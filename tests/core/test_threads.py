"""Every method may be called from any thread: nothing tears, and what one thread has pinned no other is given."""

import random
import threading
from functools import partial

import numpy as np

from tests.threads import run_together
from trtllm_kvfix.native import OutOfBlocks, SequenceRequest

from .scenes import BLOCK, begin, manager, prompt
from .workload import Churn, make_manager

PINS_MIN = 200
REQUESTS_MAX = 10**6


def test_threads_that_do_everything_leave_a_sound_manager() -> None:
    m = make_manager()
    churns = [Churn(m, random.Random(i), first_id=i * 10**6, moves_time=i == 0) for i in range(4)]

    def check() -> None:
        for _ in range(200):
            m.check_invariants()

    run_together(*(partial(churn.run, 3000) for churn in churns), check)
    for churn in churns:
        churn.finish()
    m.complete(m.take_transfers().ticket)
    m.check_invariants()
    m.reset_reuse_state()
    stats = m.get_kv_cache_stats()
    assert stats.sequences == 0
    for window in stats.windows:
        assert window.primary.free == window.primary.blocks
        assert window.host.free == window.host.blocks


def test_a_slot_that_one_thread_has_pinned_is_never_given_to_another() -> None:
    m = manager(primary=8)
    pinned: set[int] = set()
    rounds = 0
    done = threading.Event()

    def pin() -> None:
        nonlocal rounds
        table = np.zeros((1, 1, 2, 1), dtype=np.int32)
        request_id = 1
        while not done.is_set():
            request_id += 2
            try:
                begin(m, request_id, prompt(1, BLOCK))
            except OutOfBlocks:
                continue  # the other has them all
            m.copy_batch_block_offsets(table, [request_id], 1, 0)
            slot = int(table[0, 0, 0, 0])
            blocks = m.remove_sequence(request_id, pin=True)
            pinned.add(slot)
            rounds += 1
            pinned.discard(slot)
            m.unpin_blocks_by_id(blocks)

    def serve() -> None:
        table = np.zeros((1, 1, 2, 8), dtype=np.int32)
        request_id = 0
        while rounds < PINS_MIN and request_id < REQUESTS_MAX:
            request_id += 2
            try:
                m.add_sequence(SequenceRequest(request_id, prompt(2, 8 * BLOCK)))
            except OutOfBlocks:
                continue  # the other was there first
            m.copy_batch_block_offsets(table, [request_id], 1, 0)
            assert not pinned & set(table[0, 0, 0].tolist()), "a pinned slot has a new owner"
            m.remove_sequence(request_id, store=False)

    def serve_and_end() -> None:
        try:
            serve()
        finally:
            done.set()

    run_together(serve_and_end, pin)
    assert rounds >= PINS_MIN, "the threads must meet"
    m.check_invariants()


def test_counters_lose_nothing() -> None:
    m = manager(primary=64)

    def come_and_go(first: int) -> None:
        for request_id in range(first, first + 500):
            m.add_sequence(SequenceRequest(request_id, prompt(request_id, BLOCK)))
            m.remove_sequence(request_id, store=False)

    run_together(*(partial(come_and_go, first) for first in range(0, 4000, 1000)))
    total = m.get_kv_cache_stats().total
    assert (total.requests, total.blocks_new, total.tokens_new) == (2000, 2000, 2000 * BLOCK)
