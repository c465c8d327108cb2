"""What the canary hears from upstream's own V1 manager, and what it refuses.

The server of tests/torture has requests of every kind; here one case is looked at, on the simulated device.
"""

import ctypes
import gc
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.managers.test_constructors import engine
from tests.managers.test_watched_v2 import ONE_ENGINE, SIZE, Request
from trtllm_kvfix.canary.canary import Canary
from trtllm_kvfix.managers import constructors, watched_v1, watching
from trtllm_kvfix.managers.upstream_v1 import V1
from trtllm_kvfix.managers.watched_v1 import WatchedV1
from trtllm_kvfix.native import Device, DeviceError, open_device
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import on_stream

BLOCKS, BLOCK_BYTES = 16, 4096
ON = Settings(canary="observe")


class Pool:
    shape = (BLOCKS, 2, 2, BLOCK_BYTES // 16)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address

    def stride(self) -> tuple[int, ...]:
        return BLOCK_BYTES // 4, BLOCK_BYTES // 8, BLOCK_BYTES // 16, 1

    def element_size(self) -> int:
        return 4


class Books:
    """The bound manager, as far as it is asked."""

    num_pools = 1

    def __init__(self, address: int) -> None:
        self.pool, self.blocks = Pool(address), dict[int, list[int]]()
        self.asked = 0  # requests, for their blocks
        self.host = 0
        self.moved: dict[int, int] = {}  # blocks that are not in the slot of their number any more

    def get_block_pool_pointers(self) -> Any:
        return np.array([[self.pool.data_ptr(), self.host]], np.int64)

    def get_unique_primary_pool(self) -> Pool:
        return self.pool

    def get_batch_cache_block_ids(self, request_ids: list[int], window: int) -> list[list[list[int]]]:
        assert window == 64
        if missing := set(request_ids) - self.blocks.keys():
            raise RuntimeError(f"no sequences {missing}")
        return [[list(self.blocks[request_id])] for request_id in request_ids]

    def get_last_block_id(self, request_id: int) -> int:
        self.asked += 1
        return self.blocks[request_id][-1]

    def copy_batch_block_offsets(self, table: Any, request_ids: list[int], beams: int, row: int) -> None:
        assert (beams, row) == (1, 0)
        for request_id in request_ids:
            slots = [self.moved.get(each, each) for each in self.blocks[request_id]]
            np.asarray(table)[0, 0, 0, : len(slots)] = np.array(slots) * 4  # two layers, keys and values


class KVCacheManager:
    tokens_per_block = SIZE
    kv_connector_manager = None
    is_draft = False
    kv_cache_type = "CacheType.SELF"
    max_seq_len, max_draft_len, max_blocks_per_seq = 64, 0, 16
    max_attention_window_vec = (64,)
    is_full = False

    def __init__(self, address: int, stream: int) -> None:
        self._stream = SimpleNamespace(cuda_stream=stream)
        self.impl = Books(address)
        self.grants: dict[int, list[int]] = {}  # what the next call gives to each request

    def prepare_resources(self, batch: Any) -> None:
        if self.is_full:
            raise RuntimeError("no free block")
        for request_id, blocks in self.grants.items():
            self.impl.blocks[request_id] = list(blocks)
        self.grants.clear()
        for request in batch.context_requests:  # its position is behind what it reuses, and tells some builds so
            request.is_first_context_chunk = False

    def free_resources(self, request: Any) -> None:
        self.impl.blocks.pop(request.py_request_id, None)

    def add_dummy_requests(self, request_ids: list[int], blocks: list[int]) -> list[Any] | None:
        for request_id in request_ids:
            self.impl.blocks[request_id] = blocks
        return [SimpleNamespace(py_request_id=request_id) for request_id in request_ids] or None

    def shutdown(self) -> None:
        pass


class Prompt(Request):
    """Of which the answer is counted as well."""

    is_first_context_chunk = True
    tokens = 0

    def get_num_tokens(self, beam: int) -> int:
        assert beam == 0
        return max(self.prompt, self.tokens)


class Server:
    """What upstream's loop does with its manager."""

    def __init__(self, manager: KVCacheManager, device: Device, stream: int, memory: Any) -> None:
        self.manager, self.device, self.stream, self.memory = manager, device, stream, memory
        active: Any = SimpleNamespace(on=True, settings=ON)
        find = partial(watching.watcher_of, V1, active)
        methods = {name: make(find, getattr(KVCacheManager, name)) for name, make in V1.methods.items()}
        self.find, self.methods = find, methods

    @property
    def watched(self) -> WatchedV1:
        found: WatchedV1 = self.find(self.manager)
        return found

    @property
    def report(self) -> Any:
        return self.watched.canary.report()

    def call(self, name: str, *args: Any) -> Any:
        with on_stream(self.device, self.stream):
            result = self.methods[name](self.manager, *args)
        self.device.synchronize(self.stream)
        return result

    def step(self, prompts: tuple[Any, ...] = (), answers: tuple[Any, ...] = (), rounds: int = 1) -> None:
        for _ in range(rounds):
            batch = SimpleNamespace(context_requests=list(prompts), generation_requests=list(answers))
            self.call("prepare_resources", batch)

    def write(self, request: Prompt, begin: int, end: int) -> None:
        """As a forward step does."""
        blocks, part = self.manager.impl.blocks[request.py_request_id], BLOCK_BYTES // SIZE
        for position in range(begin, end):
            at = position % SIZE * part
            self.memory[blocks[position // SIZE], at : at + part] = np.random.default_rng().integers(0, 256, part)

    def prompt(self, request_id: int, blocks: list[int], *, reused: int = 0, until: int | None = None) -> Prompt:
        """It has its prompt computed, or as much of it."""
        request = Prompt(request_id, len(blocks) * SIZE)
        request.context_current_position = reused
        self.manager.grants[request_id] = blocks
        self.step((request,))
        request.context_current_position = request.prompt if until is None else until
        self.write(request, reused, request.context_current_position)
        return request


@pytest.fixture
def server() -> Iterator[Server]:
    device = open_device("cpu", seed=1)
    stream = device.create_stream()
    memory = device.empty((BLOCKS, BLOCK_BYTES // 4), "int32")
    raw = (ctypes.c_uint8 * (BLOCKS * BLOCK_BYTES)).from_address(memory.address)
    made = Server(
        KVCacheManager(memory.address, stream), device, stream, np.ctypeslib.as_array(raw).reshape(BLOCKS, -1)
    )
    yield made
    made.call("shutdown")
    del made
    gc.collect()  # `status` shows every canary that there is


def test_a_block_that_changes_while_it_is_cached_is_found_when_it_is_reused(server: Server) -> None:
    first = server.prompt(1, [3, 4])
    server.step(rounds=3)
    server.call("free_resources", first)
    server.step(rounds=3)
    server.memory[4, 2100] ^= 1  # in the second of two layers
    server.prompt(2, [3, 4, 5], reused=8)
    server.step(rounds=3)
    (found,) = server.report.findings
    assert (found.kind, found.slot, found.layers, found.filler) == ("changed", 4, (1,), 1)


def test_a_prefix_that_ends_inside_a_block_is_continued_in_it_or_in_a_copy(server: Server) -> None:
    for taken in (4, 6):  # V1 takes a leaf over that nobody holds, and copies any other
        first = server.prompt(1, [3, 4])
        server.step(rounds=3)
        server.call("free_resources", first)
        server.memory[taken] = server.memory[4]
        second = server.prompt(2, [3, taken], reused=6)
        server.step(rounds=6)
        server.call("free_resources", second)
        server.step(rounds=3)
    assert server.report.counts == {} and server.report.blocks_taken >= 5


def test_a_block_that_nobody_has_computed_is_said_to_be_so(server: Server) -> None:
    half = server.prompt(1, [3, 4], until=4)
    server.call("free_resources", half)
    server.prompt(2, [3, 4, 5], reused=8)
    server.step(rounds=2)
    (found,) = server.report.findings
    assert (found.kind, found.slot, found.reader) == ("unfilled", 4, 2)


def test_blocks_that_dummies_got_are_nobodys(server: Server) -> None:
    server.call("free_resources", server.prompt(1, [3, 4]))
    server.step(rounds=3)
    assert server.call("add_dummy_requests", [99], [4])[0].py_request_id == 99
    assert server.call("add_dummy_requests", [], [4]) is None
    server.memory[4] = 7
    server.step(rounds=6)
    assert server.report.counts == {} and server.watched.fault is None


def test_a_dummy_in_a_batch_is_not_followed(server: Server) -> None:
    request = Prompt(1, 8)
    request.is_dummy_request = True
    server.manager.grants[1] = [2, 3]
    for number in range(6):
        server.memory[2:4] = number
        server.step((request,))
        request.context_current_position = 8
    server.call("free_resources", Prompt(2, 8))  # one that has never come
    assert server.report.blocks_taken == 0 and server.watched.fault is None


def test_one_whose_coming_was_not_heard_ends_the_canary(server: Server) -> None:
    """What it gets later may be another's block."""
    request = Prompt(1, 8)
    request.is_first_context_chunk = False
    server.manager.grants[1] = [2, 3]
    server.step((request,))
    assert "request 1 is in the middle of its prompt" in str(server.watched.fault)


def test_one_that_comes_and_gets_no_blocks_ends_the_canary(server: Server) -> None:
    server.step((Prompt(1, 8),))
    assert "no sequences {1}" in str(server.watched.fault)


def test_a_request_that_has_ended_is_not_kept(server: Server) -> None:
    request = server.prompt(1, [3, 4])
    assert server.watched._batch == ([request], [])
    server.call("free_resources", request)
    assert server.watched._batch == ([], [])


def answer(server: Server, drafts: int, lag: int, extra: int = 0) -> tuple[Any, int]:
    """One that writes many blocks; its blocks have been others' before. `lag`: tokens that the host does not know yet.
    `extra`: further positions for which it has room, as the model's own engine wants them for its drafts. Returns how
    many times it was asked."""
    server.manager.max_draft_len = drafts
    free = list(range(2, BLOCKS))
    for number, block in enumerate(free):
        server.call("free_resources", server.prompt(100 + number, [block]))
    server.step(rounds=3)
    draw, request = random.Random(1), server.prompt(1, [0, 1])
    blocks, done = server.manager.impl.blocks[1], request.prompt
    asked = server.manager.impl.asked
    while done < (BLOCKS - 3) * SIZE:
        request.tokens = max(request.prompt, done + 1 - lag)
        blocks = server.manager.impl.blocks[1]
        for _ in range(-(-(done + 1 + drafts + extra) // SIZE) - len(blocks)):
            blocks = [*blocks, free.pop(draw.randrange(len(free)))]
        server.manager.grants[1] = blocks
        server.step((), (request,))
        server.write(request, done, done + 1 + drafts)
        done += 1 + draw.randint(0, drafts)
        needed = -(-(done + extra) // SIZE)
        free += blocks[needed:]  # of rejected drafts
        server.manager.impl.blocks[1] = blocks[:needed]
    request.tokens = done + 1
    server.call("free_resources", request)
    server.step(rounds=6)
    return server.report, server.manager.impl.asked - asked


@pytest.mark.parametrize("lag", [0, 1])
def test_an_answer_is_asked_when_it_can_have_got_a_further_block(server: Server, lag: int) -> None:
    report, asked = answer(server, 0, lag)
    assert report.counts == {} and report.blocks_taken >= 2 * BLOCKS - 6
    assert asked < 4 * BLOCKS


def test_one_is_asked_behind_a_call_of_upstream_that_fails_and_in_its_second_life(server: Server) -> None:
    cached = server.prompt(9, [7, 8])
    server.step(rounds=3)
    server.call("free_resources", cached)
    first = server.prompt(1, [0])
    server.step((), (first,))
    server.call("free_resources", first)
    request = server.prompt(1, [1])
    server.step((), (request,))
    server.manager.is_full = True
    for number in range(SIZE):
        request.tokens = SIZE + number
        with pytest.raises(RuntimeError, match="no free block"):
            server.step((), (request,))
    server.manager.is_full = False
    server.manager.grants[1] = [1, 7]
    request.tokens = SIZE + 1
    server.step((), (request,))
    server.write(request, SIZE, SIZE + 1)
    server.step((), (request,), rounds=8)
    assert server.report.counts == {} and server.watched.fault is None


@pytest.mark.parametrize("extra", [0, 2])
def test_drafts_are_followed_and_rejected_ones_do_not_count(server: Server, extra: int) -> None:
    report, _ = answer(server, 3, 0, extra)
    assert report.counts == {} and report.blocks_taken >= 2 * BLOCKS - 8


def test_were_given_back_blocks_not_heard_of_it_would_be_a_false_finding(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedV1, "_hear_of_rejected", lambda _: None)
    report, _ = answer(server, 3, 0)
    assert report.counts or server.watched.fault


def move(server: Server, block: int, slot: int) -> None:
    """To the host and back, while nobody has it; another has written to its slot meanwhile."""
    source = server.manager.impl.moved.get(block, block)
    server.memory[slot], server.manager.impl.moved[block] = server.memory[source], slot
    server.memory[source] ^= 1


def moved_while_cached(server: Server, *, changes: bool = False) -> Any:
    server.manager.impl.host = 4096
    server.call("free_resources", server.prompt(1, [3, 4]))
    server.step(rounds=3)
    move(server, 4, 9)
    server.memory[9, 2100] ^= changes
    request = server.prompt(2, [3, 4, 5], reused=8)
    server.step(rounds=8)
    return server.report, request


def test_with_a_host_tier_blocks_are_found_where_they_have_moved(server: Server) -> None:
    report, request = moved_while_cached(server)
    assert report.counts == {} and server.watched.canary.books.slots_of(2) == [3, 9, 5]
    server.memory[9, 2100] ^= 1
    server.step(rounds=3)
    (found,) = server.report.findings
    assert (found.kind, found.slot, found.layers, found.filler) == ("changed", 9, (1,), 1)
    server.call("free_resources", request)


def test_a_change_on_the_host_or_on_the_way_is_found_when_the_block_is_reused(server: Server) -> None:
    report, _ = moved_while_cached(server, changes=True)
    (found,) = report.findings
    assert (found.kind, found.occasion, found.slot) == ("changed", "reused", 9)
    assert (found.filler, found.reader, found.layers) == (1, 2, (1,))


def test_with_a_host_tier_one_that_nobody_filled_is_found(server: Server) -> None:
    server.manager.impl.host = 4096
    server.call("free_resources", server.prompt(1, [3]))
    server.prompt(2, [3, 6, 5], reused=8)
    (found,) = server.report.findings
    assert (found.kind, found.slot, found.reader) == ("unfilled", 6, 2)


def test_were_cached_ones_not_forgotten_it_would_be_a_false_finding(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Canary, "let_go", lambda *_: None)
    report, _ = moved_while_cached(server)
    assert report.counts["changed"]


def without_numbers(told: Callable[..., None]) -> Callable[..., None]:
    return lambda canary, slots, *_: told(canary, slots)


def test_were_they_not_known_again_by_their_numbers_it_would_be_a_false_finding(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hold", "let_go"):
        monkeypatch.setattr(Canary, name, without_numbers(getattr(Canary, name)))
    report, _ = moved_while_cached(server)
    assert report.counts == {"unfilled": 2}


def of_numbers(kind: Any, manager: Any, **_: Any) -> Any:
    return kind(manager, by_number=True)


def test_were_their_numbers_taken_for_their_slots_it_would_watch_a_wrong_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_v1, "V1Slots", partial(of_numbers, watched_v1.V1Slots))
    report, _ = moved_while_cached(server)
    assert [(found.kind, found.slot) for found in report.findings] == [("changed", 4)], "it is in slot 9, and right"


REFUSED: dict[str, Callable[[KVCacheManager], Any]] = {
    "a connector loads": lambda m: setattr(m, "kv_connector_manager", object()),
    "a draft model's": lambda m: setattr(m, "is_draft", True),
    "cross-attention": lambda m: setattr(m, "kv_cache_type", "CacheType.CROSS"),
    "leave windows": lambda m: setattr(m, "max_attention_window_vec", [64, 16]),
    "lie in 2 pools": lambda m: setattr(m.impl, "num_pools", 2),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_followed_is_refused_by_name_at_the_start(reason: str) -> None:
    manager = KVCacheManager(0, 0)
    assert constructors.objection(ON, engine(kv_cache_manager=manager)) == ""
    REFUSED[reason](manager)
    said = constructors.objection(ON, engine(kv_cache_manager=manager))
    assert said.startswith("kvfix.canary: observe: ") and reason in said
    assert watching.watcher_of(V1, SimpleNamespace(on=True, settings=ON), manager) is None  # type: ignore[arg-type]


def test_beams_and_draft_layers_are_refused_by_name() -> None:
    manager = KVCacheManager(0, 0)
    said = constructors.objection(ON, engine(kv_cache_manager=manager, max_beam_width=4))
    assert "beams share blocks" in said
    model = SimpleNamespace(spec_config=ONE_ENGINE, llm_args=SimpleNamespace())
    assert "KV of draft layers" in constructors.objection(ON, engine(kv_cache_manager=manager, model_engine=model))


def test_a_build_without_a_seam_or_a_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = KVCacheManager(0, 0)
    with monkeypatch.context() as patch:
        patch.delattr(KVCacheManager, "add_dummy_requests")
        assert "has no add_dummy_requests, where" in constructors.objection(ON, engine(kv_cache_manager=manager))
    monkeypatch.delattr(KVCacheManager, "max_draft_len")
    assert "has no max_draft_len, which say" in constructors.objection(ON, engine(kv_cache_manager=manager))


def test_other_managers_are_refused_by_name() -> None:
    class MambaHybridCacheManager(KVCacheManager):
        pass

    said = constructors.objection(ON, engine(kv_cache_manager=MambaHybridCacheManager(0, 0)))
    assert "the cache is MambaHybridCacheManager" in said and "KVCacheManager and KVCacheManagerV2 alone" in said


@pytest.mark.parametrize("name", ["copy_batch_block_offsets", "get_batch_cache_block_ids", "get_last_block_id"])
def test_a_call_that_fails_ends_the_canary_and_not_the_server(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    server.manager.impl.host = 4096
    request = server.prompt(1, [3, 4])
    server.step(rounds=3)
    monkeypatch.setattr(server.manager.impl, name, fails)
    server.manager.grants[2] = [5, 6]
    server.step((Prompt(2, 8),), (request,), rounds=3)
    assert "planted" in str(server.watched.fault) and "stood down" in server.report.state


def test_a_build_that_means_something_else_by_the_last_block_ends_the_canary(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.manager.impl, "get_last_block_id", lambda _: 3)
    server.prompt(1, [3, 4])
    assert "the last block of request 1 is 4, and 3 by get_last_block_id" in str(server.watched.fault)


def test_a_slot_that_is_not_in_the_pool_ends_the_canary_and_is_not_read(server: Server) -> None:
    request, server.manager.grants[1] = Prompt(1, 8), [3, BLOCKS]
    server.step((request,))
    request.context_current_position = 8
    server.step(rounds=3)
    assert f"slots 3 to {BLOCKS}, and the pool has {BLOCKS}" in str(server.watched.fault)
    assert server.report.blocks_taken == 0


def test_a_device_that_fails_ends_the_canary_and_not_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise DeviceError("planted")

    request = server.prompt(1, [3, 4])
    failing: Any = SimpleNamespace(free=64, send=fails, arrived=list, done=lambda: True, close=list)
    monkeypatch.setattr(server.watched.canary, "_ring", failing)
    server.step((), (request,), rounds=3)
    assert "planted" in str(server.watched.fault) and "stood down" in server.report.state
