"""Admission one by one: the request that allocates least goes first, and losses are counted."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.budget_loop import ResourceManager
from tests.fixes.doubles import TOKENS_PER_BLOCK, PlainBatch, Request, SplitBatch, UniqueToken, context
from tests.fixes.faults import Fault
from tests.fixes.proofs import Broken
from tests.standin.admissions import EVAPORATION, fill_for_evaporation
from tests.standin.serving import Server
from trtllm_kvfix.fixes.batched_admission.fix import BatchedAdmission
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fuse import IN_A_ROW_MAX, Fuse
from trtllm_kvfix.overlay.vote import Voting, Votings
from trtllm_kvfix.ranks import Tag


class Bound:
    """Tells what is cached as the bound classes do: by whole blocks, and with an assertion where windows vary."""

    tokens_per_block = TOKENS_PER_BLOCK

    def __init__(self, cached: dict[int, int] | None = None, *, reuse: bool = True, windows_vary: bool = False) -> None:
        self.cached = cached or {}
        self.enable_block_reuse = reuse
        self.is_variable_window = windows_vary

    def _cached(self, tokens: list[UniqueToken], request: Request) -> int:
        assert not self.is_variable_window, "several windows"
        assert all(isinstance(token, UniqueToken) for token in tokens), "a list of ints is refused"
        return self.cached.get(request.request_id, 0)

    def remove_sequence(self, *_: Any) -> None:
        raise AssertionError("admission releases nothing")


class Counting(Bound):
    def count_reusable_blocks(self, tokens: list[UniqueToken], request: Request, only_allocated: bool) -> int:
        assert only_allocated is False
        return self._cached(tokens, request) // TOKENS_PER_BLOCK


class Finding(Bound):
    def find_new_context_block(self, tokens: list[UniqueToken], request: Request) -> Any:
        """All tokens up to and including the first block that is missing."""
        end = self._cached(tokens, request) + TOKENS_PER_BLOCK
        return SimpleNamespace(unique_tokens=tokens[:end]) if end <= len(tokens) else None


class Silent(Bound):
    def count_reusable_blocks(self, *_: Any) -> int:
        raise AssertionError("nobody else evicts what it finds")


class Manager:
    mapping = None

    def __init__(self, impl: Bound, *, has_its_sequence: tuple[int, ...] = ()) -> None:
        self.impl = impl
        self.has_its_sequence = has_its_sequence

    def _kv_connector_should_add_sequence(self, request: Request) -> bool:
        return request.request_id not in self.has_its_sequence


@pytest.fixture
def fuse() -> Fuse:
    return Fuse("batched-admission")


Found = Callable[[Request], int]


class Admitting:
    """A resource manager whose loop notes the order in which it comes by the requests."""

    def __init__(self, fuse: Fuse, manager: Any) -> None:
        self.resource_manager = ResourceManager({"KV_CACHE_MANAGER": manager})
        self.admission = BatchedAdmission(fuse, Votings(lambda: Voting(fuse, Tag.ADMISSION, find=lambda: None)))

    def admit(self, batch: Any, found: Found = lambda _: 0) -> list[int]:
        seen: list[int] = []

        def prepare_resources(_: Any, scheduled_batch: Any) -> None:
            for request in scheduled_batch.context_requests:
                seen.append(request.request_id)
                request.context_current_position = request.prepopulated_prompt_len = found(request)

        self.admission.ordered(prepare_resources)(self.resource_manager, batch)
        return seen


@pytest.fixture
def admit(fuse: Fuse) -> Iterator[Callable[..., list[int]]]:
    def call(impl: Bound, batch: Any, found: Found = lambda _: 0) -> list[int]:
        return Admitting(fuse, Manager(impl)).admit(batch, found)

    yield call
    assert fuse.faults == 0


@pytest.mark.parametrize("telling", [Counting, Finding])
def test_the_request_that_reuses_goes_first_and_the_batch_keeps_its_order(admit: Any, telling: type[Bound]) -> None:
    batch = PlainBatch([context(1, 64), context(2, 64)])
    assert admit(telling({2: 56}), batch) == [2, 1]
    assert [request.request_id for request in batch.context_requests] == [1, 2]


@pytest.mark.parametrize("telling", [Counting, Finding])
def test_of_three_who_reuse_the_one_that_allocates_least_is_first(admit: Any, telling: type[Bound]) -> None:
    """A reading of the key as the missing block alone would turn the order round."""
    batch = PlainBatch([context(number, 64) for number in (1, 2, 3)])
    assert admit(telling({1: 8, 2: 24, 3: 48}), batch) == [3, 2, 1]


def test_a_chunk_that_is_not_the_last_waits_too_where_contexts_are_in_two_lists(admit: Any) -> None:
    long, reusing = context(1, 64, context_chunk_size=32), context(2, 64)
    batch = SplitBatch([long, reusing], [])
    assert [request.request_id for request in batch.context_requests] == [1, 2]
    assert admit(Counting({2: 56}), batch) == [2, 1]
    assert (batch.context_requests_chunking, batch.context_requests_last_chunk) == ([long], [reusing])


def test_equals_keep_the_order_of_the_scheduler(admit: Any) -> None:
    assert admit(Counting(), PlainBatch([context(number, 16) for number in range(5)])) == [0, 1, 2, 3, 4]


def test_without_reuse_nothing_is_reordered(admit: Any) -> None:
    assert admit(Counting(reuse=False), PlainBatch([context(1, 64), context(2, 8)])) == [1, 2]


@pytest.mark.parametrize("telling", [Counting, Finding])
def test_where_windows_vary_nothing_is_asked(admit: Any, telling: type[Bound]) -> None:
    """The assertion would end the server, for a batch of one too."""
    assert admit(telling({2: 56}, windows_vary=True), PlainBatch([context(1, 64), context(2, 64)])) == [1, 2]


def test_where_nothing_tells_the_order_stays(admit: Any) -> None:
    assert admit(Bound(), PlainBatch([context(1, 64), context(2, 8)])) == [1, 2]


def test_a_prompt_that_is_all_there_has_no_new_block_and_computes_one_token(admit: Any) -> None:
    batch = PlainBatch([context(1, 64), context(2, 64)])
    before = counters.read()["reuse_lost_tokens"]
    assert admit(Finding({2: 64}), batch, lambda request: 63 if request.request_id == 2 else 0) == [2, 1]
    assert counters.read()["reuse_lost_tokens"] == before


def test_who_has_its_sequence_allocates_nothing_and_is_not_measured(fuse: Fuse) -> None:
    before = counters.read()["reused_tokens"]
    admitting = Admitting(fuse, Manager(Counting(), has_its_sequence=(2,)))
    batch = PlainBatch([context(1, 8), context(2, 64), context(3, 8)])
    assert admitting.admit(batch, lambda request: 32 if request.request_id == 2 else 0) == [2, 1, 3]
    assert counters.read()["reused_tokens"] == before


def test_of_one_that_enters_alone_nothing_is_asked(fuse: Fuse) -> None:
    """A question copies its tokens out of C++ and back in, and there is no other order."""
    before = counters.read()
    admitting = Admitting(fuse, Manager(Silent(), has_its_sequence=(1,)))
    batch = PlainBatch([context(1, 64), context(2, 64)])
    assert admitting.admit(batch, lambda request: 32 if request.request_id == 2 else 0) == [1, 2]
    after = counters.read()
    assert after["reused_tokens"] - before["reused_tokens"] == 32
    assert after["reuse_lost_tokens"] == before["reuse_lost_tokens"]
    assert fuse.faults == 0


def test_what_was_reused_and_what_was_lost_is_measured(admit: Any) -> None:
    batch = PlainBatch([context(1, 64), context(2, 64), context(3, 64, context_current_position=8)])
    before = counters.read()
    admit(Counting({1: 40}), batch, found=lambda request: {1: 16, 2: 8, 3: 8}[request.request_id])
    after = counters.read()
    assert after["reused_tokens"] - before["reused_tokens"] == 24
    assert after["reuse_lost_tokens"] - before["reuse_lost_tokens"] == 24


def test_requests_that_left_meanwhile_stay_out(fuse: Fuse) -> None:
    batch = PlainBatch([context(1, 64), context(2, 8)])

    def prepare_resources(_: Any, scheduled_batch: Any) -> None:
        scheduled_batch.context_requests = [r for r in scheduled_batch.context_requests if r.request_id != 1]

    admitting = Admitting(fuse, Manager(Counting()))
    admitting.admission.ordered(prepare_resources)(admitting.resource_manager, batch)
    assert [request.request_id for request in batch.context_requests] == [2]


def test_what_upstream_raises_passes_and_the_order_comes_back(fuse: Fuse) -> None:
    batch = PlainBatch([context(1, 64), context(2, 8)])

    def prepare_resources(*_: Any) -> None:
        raise MemoryError("no free blocks")

    admitting = Admitting(fuse, Manager(Counting()))
    with pytest.raises(MemoryError):
        admitting.admission.ordered(prepare_resources)(admitting.resource_manager, batch)
    assert [request.request_id for request in batch.context_requests] == [1, 2]
    assert fuse.faults == 0


def test_a_cache_of_v2_is_left_alone(fuse: Fuse) -> None:
    v2 = SimpleNamespace(impl=object(), _kv_connector_should_add_sequence=lambda _: True)
    admitting = Admitting(fuse, v2)
    assert admitting.admit(PlainBatch([context(1, 64), context(2, 64)])) == [1, 2] and fuse.faults == 0


MECHANISM = "trtllm_kvfix.fixes.batched_admission.fix"


@pytest.mark.parametrize("times", [1, 10**9], ids=["once", "always"])
@pytest.mark.parametrize("place", ["main_v1_manager", "cached_tokens", "line_up", "replace_contexts", "measure"])
@pytest.mark.parametrize("split", [False, True])
def test_a_fault_of_ours_leaves_upstreams_batch(
    fuse: Fuse, monkeypatch: pytest.MonkeyPatch, place: str, times: int, split: bool
) -> None:
    left, real = [times], __import__(MECHANISM, fromlist=[place]).__dict__[place]

    def faulty(*args: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("injected")
        return real(*args)

    monkeypatch.setattr(f"{MECHANISM}.{place}", faulty)
    admitting = Admitting(fuse, Manager(Counting({2: 56})))
    before_admission = place in ("main_v1_manager", "cached_tokens", "line_up")
    for step in range(4):
        requests = [context(1, 64), context(2, 64)]
        batch: Any = SplitBatch(requests, []) if split else PlainBatch(requests)
        fails = step < times and before_admission
        assert admitting.admit(batch) == ([1, 2] if fails else [2, 1])
        assert [request.request_id for request in batch.context_requests] == [1, 2]
    assert fuse.faults >= 1
    assert fuse.blown == (times > 1 and before_admission)


# ---- for the tests of all fixes (proofs.py) ----

ROOM = "fixes.batched_admission.fix"
BROKEN = Broken(f"{ROOM}.line_up", lambda *_: None)


def admit_what_evaporates(place: Fault) -> None:
    """A batch has room for both prompts whole, so either order serves them; the better one finds twice as much."""
    server = Server({**EVAPORATION, "max_num_tokens": 128})
    requests = fill_for_evaporation(server)
    responses = server.serve(requests)
    assert [len(response.tokens) for response in responses] == [request.max_new_tokens for request in requests]
    assert sum(request.prepopulated_prompt_len for request in requests) in (20, 40), place


def admit_pairs(place: Fault) -> None:
    """The question that a request alone does not ask fails as often in a row as the fix allows."""
    admit_what_evaporates(place)
    server = Server({**EVAPORATION, "max_num_tokens": 128})
    for number in range(IN_A_ROW_MAX):
        pair = [server.request(2 * number + each, [number, each] * 8, 2) for each in range(2)]
        assert [len(response.tokens) for response in server.run(pair)] == [2, 2]
    server.close()


PLACES = (
    *(Fault(f"{ROOM}.{name}", "B", admit_what_evaporates) for name in ("Contexts", "main_v1_manager")),
    *(Fault(f"{ROOM}.{name}", "B", admit_pairs) for name in ("cached_tokens", "_least_first")),
    # Only where the order changes, once here; what is measured comes after the advice, which succeeds.
    *(Fault(f"{ROOM}.{name}", "B", admit_what_evaporates, stands_down=False)
      for name in ("line_up", "replace_contexts", "measure")),
)  # fmt: skip
