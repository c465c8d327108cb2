"""With no overlay, pins from another thread are lost, or come too late, in the remote-G2 build (hazard H4).

Each test chooses one interleaving: what a second thread does happens whole between two steps of the first.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.standin.fixture import upstream
from tests.standin.serving import Server

BLOCKS = 16
BLOCK = 4


class Scene:
    """A cache that holds one finished request's blocks and nothing else; `fill` needs all of them."""

    def __init__(self) -> None:
        self.server = Server({"kv_cache_config": {"max_tokens": BLOCKS * BLOCK, "enable_partial_reuse": False}})
        self.impl = self.server.manager.impl
        self.pauses = self.server.pauses
        cached = self.server.request(1, list(range(8)))
        cached.context_chunk_size = 8
        self.impl.add_sequence_batch([(1, 8, 1)], [cached])
        cached.move_to_next_context_chunk()
        self.hashes = self.impl.commit_and_get_block_hashes_for_request(cached, self.impl.window)
        self.block_ids = self.impl.get_cache_block_ids(1, self.impl.window)[0]
        self.impl.remove_sequence(1, cached, False)

    def fill(self) -> None:
        """The executor adds a request that can take every block that is not held."""
        tokens = BLOCKS * BLOCK - BLOCK * len(set(self.impl.pin_counts))
        other = self.server.request(2, [1000 + i for i in range(tokens)])
        self.impl.add_sequence_batch([(2, tokens, 1)], [other])

    def pin_found(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.impl.find_and_pin_blocks_by_hash(self.hashes, self.impl.window, "device")
        return found


@pytest.fixture
def scene() -> Iterator[Scene]:
    with upstream("C"):
        made = Scene()
        yield made
        made.server.close()


def once(work: Callable[[], object]) -> Callable[[], None]:
    """An action that runs `work` in a thread of its own, to its end, the first time only."""
    threads: list[threading.Thread] = []

    def action() -> None:
        if not threads:
            threads.append(threading.Thread(target=work))
            threads[0].start()
            threads[0].join()

    return action


def test_one_thread_at_a_time_is_fine(scene: Scene) -> None:
    scene.pin_found()
    scene.pin_found()
    scene.impl.unpin_blocks_by_id(scene.block_ids)
    scene.fill()
    assert scene.impl.standin_torn_pins() == []


def test_of_two_pins_at_once_one_is_lost(scene: Scene) -> None:
    with scene.pauses.at(scene.pauses.PIN_COUNT_READ, once(scene.pin_found)):
        scene.pin_found()
    # The first holder lets go. The second still reads, and nothing holds the block for it.
    scene.impl.unpin_blocks_by_id(scene.block_ids[:1])
    assert scene.impl.pin_counts == {scene.block_ids[1]: 2}


def test_a_block_that_was_found_goes_to_another_request_before_it_is_pinned(scene: Scene) -> None:
    with scene.pauses.at(scene.pauses.PIN_FOUND, once(scene.fill)):
        found = scene.pin_found()
    assert [answer["pinned"] for answer in found] == [True, True]
    assert scene.impl.standin_torn_pins() == scene.block_ids
    taken = {int(slot) for slot in scene.server.manager.standin_truth([2], [1])[0, 0, 0] // scene.impl.offset_scale}
    assert {answer["slot_idx"] for answer in found} <= taken, "the remote reader is sent to somebody else's blocks"


def test_a_free_block_is_taken_although_it_was_pinned_since_it_was_seen(scene: Scene) -> None:
    with scene.pauses.at(scene.pauses.FREE_BLOCK_SEEN, once(scene.pin_found)):
        scene.fill()
    assert scene.impl.standin_torn_pins() == scene.block_ids
