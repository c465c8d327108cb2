"""What the canary hears from upstream's own V2 manager, in attributes and methods of its class, and what it refuses.

The attack of tests/torture has requests of every kind; here one case is looked at, on the simulated device.
"""

import ctypes
import gc
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.managers.test_constructors import engine
from trtllm_kvfix import process
from trtllm_kvfix.canary.canary import Canary
from trtllm_kvfix.managers import constructors, upstream_v2, watched_v2, watching
from trtllm_kvfix.managers.watched import filled_of, hazards_open
from trtllm_kvfix.managers.watched_v2 import WatchedV2
from trtllm_kvfix.native import Device, DeviceError, open_device
from trtllm_kvfix.overlay.fix import Manager
from trtllm_kvfix.sections import FixChoices
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import on_stream

SIZE, SLOTS, SLOT_BYTES = 4, 12, 4096
ON = Settings(canary="observe")


class Cache:
    """Of one request, as upstream's manager shows it."""

    def __init__(self, slots: list[int], committed: int = 0, capacity: int | None = None) -> None:
        self.slots, self.num_committed_tokens, self.is_active = slots, committed, True
        self.capacity = len(slots) * SIZE if capacity is None else capacity

    def get_base_page_indices(self, group: int) -> list[int]:
        assert group == 0
        return [*self.slots, -1, -1]  # a row is longer


class Request:
    is_dummy_request = False

    def __init__(self, request_id: int, prompt: int) -> None:
        self.py_request_id, self.prompt, self.context_current_position = request_id, prompt, 0

    @property
    def context_remaining_length(self) -> int:
        return self.prompt - self.context_current_position

    def get_num_tokens(self, beam: int) -> int:
        assert beam == 0
        return self.prompt


class KVCacheManagerV2:
    tokens_per_block = SIZE
    kv_connector_manager = None
    is_draft = False
    draft_layer_ids: tuple[int, ...] = ()
    max_draft_len = 0

    def __init__(self, address: int, stream: int) -> None:
        self._stream = SimpleNamespace(cuda_stream=stream)
        self.kv_cache_map: dict[int, Cache] = {}
        layers = [
            SimpleNamespace(sliding_window_size=None, buffers=[SimpleNamespace(role=r)]) for r in ("key", "value")
        ]
        self.kv_cache_manager_py_config = SimpleNamespace(cache_tiers=["device"], layers=layers)
        buffers = [SimpleNamespace(layer_id=layer) for layer in (0, 0, 1, 1)]
        variant = SimpleNamespace(layer_group_id=0, coalesced_buffers=[SimpleNamespace(buffer_ids=buffers)])
        pool = SimpleNamespace(base_address=address, slot_bytes=SLOT_BYTES)
        group = SimpleNamespace(pools=[pool], slot_desc=SimpleNamespace(variants=[variant]))
        self.impl = SimpleNamespace(layer_grouping=[[0, 1]], pool_group_descs=[group])

    def prepare_resources(self, _batch: Any) -> None:
        pass

    def free_resources(self, request: Any) -> None:
        self.kv_cache_map.pop(request.py_request_id)

    def _restore_page_index_bufs(self, _request_id: int, _cache: Any) -> None:
        pass

    def try_allocate_generation(self, _request: Any) -> bool:
        return True

    def shutdown(self) -> None:
        pass


class Server:
    """What upstream's loop does with its manager."""

    def __init__(self, manager: KVCacheManagerV2, device: Device, stream: int, memory: Any) -> None:
        self.manager, self.device, self.stream, self.memory = manager, device, stream, memory
        active: Any = SimpleNamespace(on=True, settings=ON)
        self.active = active
        find = partial(watching.watcher_of, upstream_v2.V2, active)
        self.prepare = watching.preparing(find, KVCacheManagerV2.prepare_resources)
        self.free = watching.freeing(find, KVCacheManagerV2.free_resources)

    def end(self, request: "Request") -> None:
        with on_stream(self.device, self.stream):
            self.free(self.manager, request)

    @property
    def watched(self) -> WatchedV2:
        found: WatchedV2 | None = watching.watcher_of(upstream_v2.V2, self.active, self.manager)
        assert found is not None
        return found

    @property
    def report(self) -> Any:
        (group,) = self.watched.groups
        return group.canary.report()

    def step(self, *requests: Request, rounds: int = 1) -> None:
        for _ in range(rounds):
            with on_stream(self.device, self.stream):
                batch = SimpleNamespace(context_requests=list(requests), generation_requests=[])
                self.prepare(self.manager, batch)
            self.device.synchronize(self.stream)

    def compute(self, request: Request, until: int) -> None:
        """As a forward step does, and what upstream notes behind it."""
        slots = self.manager.kv_cache_map[request.py_request_id].slots
        for position in range(request.context_current_position, until):
            part = SLOT_BYTES // SIZE
            at = position % SIZE * part
            self.memory[slots[position // SIZE], at : at + part] = np.random.default_rng().integers(0, 256, part)
        request.context_current_position = until


def end(manager: KVCacheManagerV2, shutdown: Callable[..., None]) -> None:
    watching.ending(vars, shutdown)(manager)


@pytest.fixture
def server() -> Iterator[Server]:
    device = open_device("cpu", seed=1)
    stream = device.create_stream()
    memory = device.empty((SLOTS, SLOT_BYTES // 4), "int32")
    raw = (ctypes.c_uint8 * (SLOTS * SLOT_BYTES)).from_address(memory.address)
    made = Server(
        KVCacheManagerV2(memory.address, stream), device, stream, np.ctypeslib.as_array(raw).reshape(SLOTS, -1)
    )
    yield made
    end(made.manager, KVCacheManagerV2.shutdown)
    del made
    gc.collect()  # `status` shows every canary that there is


def served(server: Server, request_id: int, slots: list[int], *, reused: int = 0, prompt: int | None = None) -> Request:
    """It has its prompt computed."""
    request = Request(request_id, len(slots) * SIZE if prompt is None else prompt)
    server.manager.kv_cache_map[request_id] = cache = Cache(slots, reused)
    request.context_current_position = reused
    server.step(request)
    server.compute(request, request.prompt)
    cache.num_committed_tokens = request.prompt
    return request


def test_a_block_that_changes_while_it_is_cached_is_found_when_it_is_reused(server: Server) -> None:
    first = served(server, 1, [3, 4])
    server.step(rounds=3)
    server.end(first)
    server.step(rounds=3)
    server.memory[4, 2100] ^= 1  # in the second of two layers
    served(server, 2, [3, 4, 5], reused=8)
    server.step(rounds=3)
    (found,) = server.report.findings
    assert (found.kind, found.slot, found.layers, found.filler) == ("changed", 4, (1,), 1)


def test_a_prefix_that_ends_inside_a_block_is_continued_in_a_copy(server: Server) -> None:
    served(server, 1, [3, 4])
    server.step(rounds=3)
    server.memory[6] = server.memory[4]  # upstream's copy
    served(server, 2, [3, 6], reused=6, prompt=8)
    server.step(rounds=6)
    assert server.report.counts == {} and server.report.blocks_taken == 3


def test_taken_for_a_part_of_what_was_cached_the_copy_would_be_a_false_finding(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted = Canary.admitted
    monkeypatch.setattr(
        Canary, "admitted", lambda self, request, slots, reused, _: admitted(self, request, slots, reused)
    )
    served(server, 1, [3, 4])
    server.step(rounds=3)
    served(server, 2, [3, 6], reused=6, prompt=8)
    server.step(rounds=2)
    assert server.report.counts == {"unfilled": 1}


def test_a_block_that_nobody_has_filled_is_said_to_be_so(server: Server) -> None:
    half = Request(1, 8)
    server.manager.kv_cache_map[1] = Cache([3, 4])
    server.step(half)
    server.compute(half, 4)
    server.end(half)
    served(server, 2, [3, 4, 5], reused=8)
    server.step(rounds=2)
    (found,) = server.report.findings
    assert (found.kind, found.slot, found.reader) == ("unfilled", 4, 2)


def test_a_dummy_that_pads_a_batch_is_never_complete(server: Server) -> None:
    server.manager.kv_cache_map[99] = Cache([7])
    for number in range(6):
        server.memory[7] = number
        server.step()
    assert server.report.blocks_taken == 0 and server.report.counts == {}


def test_an_equal_block_of_another_takes_the_place_of_its_own(server: Server) -> None:
    first, second = Request(1, 8), Request(2, 8)
    caches = server.manager.kv_cache_map
    caches[1], caches[2] = Cache([3, 4]), Cache([5, 6])
    server.step(first, second)
    for request in (first, second):
        server.compute(request, 8)
    caches[1].num_committed_tokens = caches[2].num_committed_tokens = 8
    caches[2].slots = [3, 4]  # by its commit
    caches[3] = Cache([5, 6])  # what it has given back
    third = Request(3, 8)
    server.step(third)
    server.compute(third, 8)
    server.step(rounds=6)
    assert server.report.counts == {} and server.report.blocks_compared["reused"] >= 1


def test_a_request_that_is_computed_again_begins_anew(server: Server) -> None:
    first = served(server, 1, [3, 4])
    server.step(rounds=3)
    server.manager.kv_cache_map[1] = Cache([3, 4])  # closed and made again, and nobody has told
    first.context_current_position = 0
    server.step(first)
    server.compute(first, 8)
    server.step(rounds=6)
    assert server.report.counts == {} and server.report.blocks_taken == 4


REFUSED: dict[str, Callable[[KVCacheManagerV2], Any]] = {
    "a connector loads": lambda m: setattr(m, "kv_connector_manager", object()),
    "KV of draft layers": lambda m: setattr(m, "draft_layer_ids", (7,)),
    "cross-attention": lambda m: setattr(m, "kv_cache_type", "CacheType.CROSS"),
    "several blocks share a slot": lambda m: setattr(m, "enable_swa_scratch_reuse", True),
    "helix": lambda m: setattr(m, "_has_cp_helix", True),
    "compression": lambda m: setattr(m, "kv_compression_manages_history", True),
    "TRTLLM_KV_FRESH_PAGE_FILL": lambda m: setattr(m, "_fresh_page_fill", 0.0),
    "lie in 2 pools": lambda m: m.impl.pool_group_descs[0].pools.append(object()),
    "two levels": lambda m: setattr(m.kv_cache_manager_py_config.layers[0].buffers[0], "is_sparse", True),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_followed_is_refused_by_name_at_the_start(reason: str) -> None:
    manager = KVCacheManagerV2(0, 0)
    assert constructors.objection(ON, engine(kv_cache_manager=manager)) == ""
    REFUSED[reason](manager)
    said = constructors.objection(ON, engine(kv_cache_manager=manager))
    assert said.startswith("kvfix.canary: observe: ")
    assert reason in said
    active: Any = SimpleNamespace(on=True, settings=ON)
    assert watching.watcher_of(upstream_v2.V2, active, manager) is None


@pytest.mark.parametrize("name", ["_restore_page_index_bufs", "try_allocate_generation"])
def test_a_build_without_a_seam_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(KVCacheManagerV2, name)
    said = constructors.objection(ON, engine(kv_cache_manager=KVCacheManagerV2(0, 0)))
    assert f"KVCacheManagerV2 of this build has no {name}" in said


def test_a_build_that_does_not_say_where_blocks_lie_is_refused_by_name() -> None:
    manager = KVCacheManagerV2(0, 0)
    del manager.impl.pool_group_descs, manager.kv_cache_manager_py_config
    said = constructors.objection(ON, engine(kv_cache_manager=manager))
    assert "of this build has no kv_cache_manager_py_config, impl.pool_group_descs, which say where blocks lie" in said


@pytest.mark.parametrize(("manager", "hazards"), [("V1", {"H1", "H7"}), ("V2", {"H2", "H7"})])
def test_a_guess_names_hazards_of_this_manager_whose_fix_is_off(manager: Manager, hazards: set[str]) -> None:
    off = dict.fromkeys(("staged-offsets-v1", "staged-offsets-v2", "input-copy-fence"), "off")
    settings = Settings(fixes=FixChoices.model_validate(off))
    assert process.active.registry.fixes, "known where an overlay is"
    assert set(hazards_open(settings, manager)) == hazards
    assert hazards_open(Settings(), manager) == []


def test_compression_of_the_engine_is_refused() -> None:
    model = SimpleNamespace(spec_config=None, llm_args=SimpleNamespace(kv_cache_compression_config=object()))
    said = constructors.objection(ON, engine(kv_cache_manager=KVCacheManagerV2(0, 0), model_engine=model))
    assert "as other bytes" in said


def end_in_another_slot(server: Server) -> Any:
    """Its second block is committed, and an equal one of another request has taken its place."""
    served(server, 2, [6, 7])
    request = served(server, 1, [3, 4])
    cache = server.manager.kv_cache_map[1]
    cache.num_committed_tokens = SIZE
    server.step(rounds=3)
    cache.slots, cache.num_committed_tokens = [3, 7], 2 * SIZE
    server.manager.kv_cache_map[3] = Cache([4])
    server.memory[4] ^= 1  # a copy
    server.end(request)
    server.step(rounds=3)
    return server.report


def test_one_that_ends_is_asked_whether_it_has_other_slots(server: Server) -> None:
    assert end_in_another_slot(server).counts == {}


def test_were_it_not_asked_its_former_slot_would_be_a_false_finding(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedV2, "_is_as_heard", lambda *_: True)
    assert end_in_another_slot(server).counts == {"changed": 1}


def test_those_that_began_together_are_asked_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_v2, "ASKED_MAX", 2)
    resting = watched_v2._RestingUntil(positions_per_step=1)
    for number in range(5):
        one = watched_v2._Followed(Cache([number]), told=0, committed=0, blocks=1, filled=2)
        resting.add(number, one, SIZE, step=1)
    resting.add(5, watched_v2._Followed(Cache([5]), told=0, committed=0, blocks=1, filled=1), SIZE, step=1)
    resting.discard(1)
    assert [resting.due(step) for step in range(2, 7)] == [[], [], [0, 2], [3, 4], [5]]


def test_with_drafts_one_is_asked_as_soon_as_it_can_have_filled_its_block() -> None:
    resting = watched_v2._RestingUntil(positions_per_step=4)
    resting.add(0, watched_v2._Followed(Cache([0]), told=0, committed=0, blocks=1, filled=0), SIZE, step=1)
    assert [resting.due(step) for step in range(2, 5)] == [[], [0], []]


def test_one_that_is_computed_again_in_the_step_in_which_it_is_due_begins_anew(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.manager.kv_cache_manager_py_config.cache_tiers.append("host")
    request, other = served(server, 1, [3, 4], prompt=6), Request(2, 4)
    monkeypatch.setattr(Request, "get_num_tokens", lambda self, _: self.prompt + 2)
    server.step(request, rounds=2)
    (resting,) = server.watched._resting._due.values()  # type: ignore[attr-defined]
    assert resting == [1]
    server.manager.kv_cache_map[1], server.manager.kv_cache_map[2] = Cache([5, 6]), Cache([7])
    request.context_current_position = 0
    server.step(request, other)
    server.step(request, other)
    assert server.watched.fault is None and server.watched._followed[1].request is request


def got_and_given_back_between_two_steps(server: Server) -> Any:
    """Drafts are padded behind `prepare_resources`, and rejected before the next."""
    server.end(served(server, 1, [3, 4]))
    other = served(server, 2, [5])
    server.step(other, rounds=3)
    server.memory[4] ^= 1
    server.step(other, rounds=6)
    return server.report


def test_with_drafts_nothing_is_looked_at_that_nobody_active_has(server: Server) -> None:
    server.manager.max_draft_len = 3
    assert got_and_given_back_between_two_steps(server).counts == {}


def test_followed_while_cached_such_a_block_would_be_a_false_finding(server: Server) -> None:
    assert got_and_given_back_between_two_steps(server).counts == {"changed": 1}


def with_drafts(server: Server, monkeypatch: pytest.MonkeyPatch, extra: int = 0) -> Any:
    """Three a step, some of them accepted. Blocks that held none of these are given back.

    extra: further positions for which a request has room, as the model's own engine wants them for its drafts."""
    draw = random.Random(1)
    server.manager.max_draft_len = drafts = 3
    request = served(server, 1, [0, 1], prompt=6)
    cache, free, done = server.manager.kv_cache_map[1], list(range(2, SLOTS)), 6
    tokens = done + 1
    monkeypatch.setattr(Request, "get_num_tokens", lambda *_: tokens)
    while done < (SLOTS - 2) * SIZE:
        cache.capacity = done + 1 + drafts + extra
        while len(cache.slots) * SIZE < cache.capacity:
            cache.slots.append(free.pop(draw.randrange(len(free))))
        server.step(request)
        position, request.context_current_position = request.context_current_position, done
        server.compute(request, done + 1 + drafts)
        request.context_current_position = position
        done += 1 + draw.randint(0, drafts)
        cache.capacity, tokens = done + extra, done + 1
        needed = -(-cache.capacity // SIZE)
        free += cache.slots[needed:]
        del cache.slots[needed:]
    server.step(request, rounds=6)
    return server.report


@pytest.mark.parametrize("extra", [0, 2])
def test_accepted_drafts_fill_blocks_and_rejected_ones_do_not(
    server: Server, monkeypatch: pytest.MonkeyPatch, extra: int
) -> None:
    report = with_drafts(server, monkeypatch, extra)
    assert report.counts == {} and report.blocks_taken >= SLOTS - 3


def test_were_rejected_drafts_kept_for_certain_it_would_be_a_false_finding(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_v2, "filled_of", lambda request: filled_of(request) + 3)
    assert with_drafts(server, monkeypatch).counts["changed"]


TWO_ENGINES = SimpleNamespace(use_one_engine=lambda: False)
DRAFT_TARGET = SimpleNamespace(spec_dec_mode=TWO_ENGINES, max_draft_len=3, tokens_per_gen_step=4)
ONE_ENGINE = SimpleNamespace(spec_dec_mode=SimpleNamespace(use_one_engine=lambda: True), max_draft_len=3)
TREES = [
    SimpleNamespace(**{**vars(DRAFT_TARGET), **sign})
    for sign in ({"max_total_draft_tokens": 12}, {"tokens_per_gen_step": 13}, {"eagle_choices": [[0]]})
]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (DRAFT_TARGET, ""),
        (ONE_ENGINE, "KV of draft layers"),
        *((tree, "accepted drafts of a tree") for tree in TREES),
        (object(), "KV of draft layers"),
    ],
)
def test_drafts_are_followed_where_the_cache_has_no_draft_layers(config: Any, reason: str) -> None:
    said = said_of_drafts(config, KV_CACHE_MANAGER=KVCacheManagerV2(0, 0))
    assert (reason in said) if reason else said == ""


class Kind(NamedTuple):
    """Of a manager, as upstream's enumeration names it."""

    name: str


def said_of_drafts(config: Any, **managers: Any) -> str:
    model = SimpleNamespace(spec_config=config, llm_args=SimpleNamespace())
    registered = SimpleNamespace(resource_managers={Kind(name): manager for name, manager in managers.items()})
    return constructors.objection(ON, engine(kv_cache_manager=None, resource_manager=registered, model_engine=model))


def test_drafts_of_one_engine_are_followed_where_their_layers_have_a_cache_of_their_own() -> None:
    """Upstream registers one by default since spring 2026, and the engine writes the drafts' KV there."""
    target, drafts = KVCacheManagerV2(0, 0), KVCacheManagerV2(0, 0)
    assert said_of_drafts(ONE_ENGINE, KV_CACHE_MANAGER=target, DRAFT_KV_CACHE_MANAGER=drafts) == ""
    for without in ({}, {"DRAFT_KV_CACHE_MANAGER": None}):
        assert "no draft KV cache beside" in said_of_drafts(ONE_ENGINE, KV_CACHE_MANAGER=target, **without)
    target.draft_layer_ids = (7,)  # some of them are in the target's all the same
    assert "KV of draft layers" in said_of_drafts(ONE_ENGINE, KV_CACHE_MANAGER=target, DRAFT_KV_CACHE_MANAGER=drafts)
    for tree in TREES:
        both = SimpleNamespace(**{**vars(tree), **vars(ONE_ENGINE)})
        assert "a tree" in said_of_drafts(both, KV_CACHE_MANAGER=KVCacheManagerV2(0, 0), DRAFT_KV_CACHE_MANAGER=drafts)


def test_a_build_that_does_not_say_how_much_is_drafted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(KVCacheManagerV2, "max_draft_len")
    model = SimpleNamespace(spec_config=DRAFT_TARGET, llm_args=SimpleNamespace())
    said = constructors.objection(ON, engine(kv_cache_manager=KVCacheManagerV2(0, 0), model_engine=model))
    assert "has no max_draft_len" in said


def test_a_block_that_changes_while_the_engine_is_idle_is_found_soon_behind_it(server: Server) -> None:
    """It has ended, and no step and no look follows until another request comes."""
    server.end(served(server, 1, [3, 4]))
    server.device.synchronize(server.stream)
    server.memory[4, 2100] ^= 1
    other = served(server, 2, [5])
    server.step(other, rounds=2)
    (found,) = server.report.findings
    assert (found.kind, found.occasion, found.slot, found.filler) == ("changed", "live", 4, 1)


def test_a_device_that_destroys_no_event_does_not_keep_upstream_from_ending(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU behind a fault: each call of its driver fails."""

    def fails(_: int) -> None:
        raise DeviceError("planted")

    served(server, 1, [3, 4])
    monkeypatch.setattr(server.watched._order, "_device", SimpleNamespace(destroy_event=fails))
    ended: list[KVCacheManagerV2] = []
    end(server.manager, ended.append)
    assert ended == [server.manager]
