"""The canary beside the stand-in's V1 manager, in its own loops. Blocks have contents, on the simulated device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from random import Random
from typing import Any

from tests.fixes.applied import only, standing_in
from tests.standin.serving import Server
from tests.torture.engines import SEED, needed
from trtllm_kvfix import process
from trtllm_kvfix.canary.canary import CanaryReport
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.managers import constructors
from trtllm_kvfix.managers.watched_v1 import WatchedV1
from trtllm_kvfix.managers.watching import ATTRIBUTE
from trtllm_kvfix.overlay import start_gate
from trtllm_kvfix.overlay.activation import Activation
from trtllm_kvfix.overlay.registry import Registry

SIZE, BLOCKS, BYTES_PER_TOKEN = 4, 40, 16  # tokens in a block, blocks, and as the stand-in counts
DUMMY_ID = 1 << 40
TAKEN_WITHIN = 3  # steps: the first digest of a block


class Traffic:
    """Requests that share prefixes, of which the loop cancels some, while dummies take blocks and give them back."""

    def __init__(self, server: Server, *, cancels: bool = True) -> None:
        self.server, self.random, self.cancels = server, Random(SEED), cancels
        self.iterations = self.sent = 0
        self.done: Callable[[], bool] = lambda: False
        self.plants_at = 0  # from this iteration on a bit of a block changes, once, that nobody writes to
        self.planted: tuple[int, int] | None = None  # its slot, and the step
        self._filled_at: dict[tuple[int, int], int] = {}  # by request and block: the iteration in which it was seen
        self._prompt = [1]
        self._dummies: list[Any] = []
        contents = import_module("tensorrt_llm._standin.contents").Contents()
        server.executor.contents = server.executor.model_engine.contents = self.contents = contents

    @property
    def watched(self) -> WatchedV1:
        found: WatchedV1 = vars(self.server.manager)[ATTRIBUTE]
        return found

    @property
    def report(self) -> CanaryReport:
        return self.watched.canary.report()

    @property
    def speaks(self) -> bool:
        """The canary begins with the first batch."""
        return ATTRIBUTE in vars(self.server.manager) and bool(self.report.counts)

    def run(self, iterations: int) -> None:
        """Until the loop has had so many, or all is done."""
        end = self.iterations + iterations
        with self.server.pauses.at(self.server.pauses.CALL_SCHEDULE, self._in_between):
            while self.iterations < end and not self.done():
                self.server.run([self._request() for _ in range(12)])

    def _request(self) -> Any:
        draw, self.sent = self.random, self.sent + 1
        if draw.randrange(4):  # or else the last prompt comes again
            begin = [draw.randrange(3)] * draw.choice((0, 4, 8, 9, 14))
            self._prompt = begin + [draw.randrange(2) for _ in range(draw.randint(1, 24))]
        return self.server.request(self.sent, self._prompt, draw.randint(2, 12))

    def _in_between(self) -> None:
        """In the loop's thread, between two iterations."""
        executor, manager = self.server.executor, self.server.manager
        self.iterations += 1
        if self.cancels and self.iterations % 5 == 0 and executor.active_requests:
            executor.canceled_req_ids.append(self.random.choice(executor.active_requests).request_id)
        # The scheduler has counted the blocks that these will need, and no dummy: each may get one in this iteration.
        is_short = manager.get_num_free_blocks() <= len(executor.active_requests)
        if self._dummies and (is_short or self.iterations % 11 == 5):
            for each in self._dummies:
                manager.free_resources(each)
            self._dummies = []
        elif self.iterations % 11 == 0 and not is_short:
            self._dummies = manager.add_dummy_requests([DUMMY_ID + self.iterations]) or []
            for each in self._dummies:
                self._write_as(each)
        if self.plants_at and self.planted is None:
            self._plant()

    def _write_as(self, dummy: Any) -> None:
        """Behind what its block held goes to the host: upstream orders only what `prepare_resources` asks for."""
        executor, impl, tensors = self.server.executor, self.server.manager.impl, self.server.tensors
        if hasattr(impl, "refresh_blocks"):
            impl.refresh_blocks()
        with tensors.on(getattr(executor, "execution_stream", tensors.current_stream())):
            for slot in impl.standin_slots(dummy.request_id):
                impl.get_unique_primary_pool()[slot].copy_(self._junk(), non_blocking=True)

    def _plant(self) -> None:
        """In a block of the answer of a request that is served, or else it may have another owner before it is looked
        at; and when its first digest was taken."""
        for request in self.server.executor.active_requests:
            filled = (request.get_num_tokens(0) - 1) // SIZE
            if (filled - 1) * SIZE < request.orig_prompt_len:
                continue
            seen_at = self._filled_at.setdefault((request.request_id, filled - 1), self.iterations)
            if self.iterations >= max(self.plants_at, seen_at + TAKEN_WITHIN):
                slot = self.watched.canary.books.slots_of(request.request_id)[filled - 1]
                self._change(slot)
                self.planted = slot, self.report.steps
                return

    def _change(self, slot: int) -> None:
        """As the stream comes to it."""
        block, tensors = self.server.manager.get_unique_primary_pool()[slot], self.server.tensors
        seen, done = tensors.pinned(*block.shape), tensors.event()
        seen.copy_(block, non_blocking=True)
        done.record()
        done.synchronize()
        seen.numpy()[0, 0, 0] ^= 1
        block.copy_(seen, non_blocking=True)

    def _junk(self) -> Any:
        made = self.server.tensors.pinned(*self.server.manager.get_unique_primary_pool().shape[1:])
        made.numpy()[:] = self.iterations
        return made


@contextmanager
def watched_v1(
    variant: str,
    *,
    overlap: bool = True,
    without: str = "",
    partial_reuse: bool = True,
    cancels: bool = True,
    budget: int = 48,
    has_host: bool = False,
) -> Iterator[Traffic]:
    """`without`: a fix that is off. `budget`: tokens in a step. `has_host`: half as many blocks on the host."""
    cache = {
        "max_tokens": SIZE * BLOCKS, "tokens_per_block": SIZE, "enable_partial_reuse": partial_reuse,
        "host_cache_size": SIZE * BYTES_PER_TOKEN * BLOCKS // 2 if has_host else 0,
    }  # fmt: skip
    with standing_in(variant):
        overlay = Activation(Registry(ALL), (start_gate, *constructors.ALL), constructors.objection)
        fixes = [each for each in needed(variant) if each != without]
        overlay.activate(only(*fixes, canary="observe"))
        assert process.active.registry.fixes, "findings name hazards of fixes that are known here"
        server = Server({
            "max_num_tokens": budget, "enable_chunked_prefill": True, "kv_cache_config": cache,
            "disable_overlap_scheduler": not overlap,
        })  # fmt: skip
        try:
            yield Traffic(server, cancels=cancels)
        finally:
            server.close()
            assert overlay.deactivate() == []
