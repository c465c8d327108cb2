"""Measures what batched-admission costs a batch of new prompts, on the stand-in of a build that adds them one by one.

admit_cpu_us: the executor's resource manager prepares a batch of prompts, the first half of each cached, or nothing
of any ("new"); as upstream does it, and with the fix around it. Both take turns at going first; ratios are to upstream.
The device has no part in it. In a step without new prompts the fix does nothing: bench_loop.py has its cost there.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measure import RESULTS, Row, report
from overlay_case import TOKENS_PER_BLOCK, Call, compared  # first: it puts the repository into the path

from tests.standin.fixture import upstream
from tests.standin.serving import Server
from trtllm_kvfix.fixes.batched_admission.fix import BatchedAdmission
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.vote import Voting, Votings
from trtllm_kvfix.ranks import Tag

VARIANT = "B"
SIZES = ((8, 64), (64, 64), (8, 512), (64, 512))  # prompts, blocks of each
QUICK = SIZES[:2]


class Arrivals:
    """`arrive` ends one batch and makes the next; `admit` has the executor's resource manager prepare it."""

    def __init__(self, sequences: int, blocks: int, *, are_new: bool = False) -> None:
        self.name, self.blocks = f"{VARIANT}-v1-{sequences}x{blocks}" + ("-new" if are_new else ""), blocks
        self._are_new = are_new
        self._sequences, self._tokens = sequences, blocks * TOKENS_PER_BLOCK
        room = self._tokens + TOKENS_PER_BLOCK
        cache = {"max_tokens": 2 * sequences * room, "enable_block_reuse": True}  # a batch, and what it leaves cached
        self.server = Server({"max_batch_size": sequences, "max_seq_len": room, "kv_cache_config": cache})
        self.manager, self._resources = self.server.manager, self.server.executor.resource_manager
        self.stream = getattr(self.server.executor, "execution_stream", None) or self.server.tensors.stream()
        self._batch: Any = self.server.scheduled_requests()
        self._arrived = 0

    def arrive(self) -> None:
        for request in self._batch.context_requests:
            request.context_current_position = request.prompt_len  # computed, so that it is stored
            self.manager.free_resources(request)
        self._batch = self.server.scheduled_requests()
        self._batch.context_requests = [self._prompt(number) for number in range(self._sequences)]

    def _prompt(self, number: int) -> Any:
        self._arrived += 1
        half = self._tokens // 2
        first = -self._arrived if self._are_new else number
        return self.server.request(self._arrived, [first] * half + [-self._arrived] * half, 1)

    def admit(self) -> None:
        self._resources.prepare_resources(self._batch)

    def settle(self) -> None:
        self.stream.synchronize()

    def require_reuse(self) -> None:
        reused = [request.prepopulated_prompt_len for request in self._batch.context_requests]
        expected = 0 if self._are_new else self._tokens // 2
        if any(tokens != expected for tokens in reused):
            raise RuntimeError(f"{self.name}: prompts reused {reused} tokens, not {expected} of {self._tokens}")


def compared_arms(case: Arrivals, rounds: int) -> Iterator[Row]:
    kind, fuse = type(case.server.executor.resource_manager), Fuse("batched-admission")
    original: Callable[..., Any] = kind.prepare_resources
    ordered = BatchedAdmission(fuse, Votings(lambda: Voting(fuse, Tag.ADMISSION))).ordered(original)

    def with_method(method: Callable[..., Any]) -> Call:
        def switch_and_admit() -> None:
            kind.prepare_resources = method
            case.admit()

        return switch_and_admit

    case.arrive()
    case.admit()  # what the first prompts leave is what the others find
    arms = {"racy_original": with_method(original), "batched-admission": with_method(ordered)}
    yield from compared(case, "admit_cpu_us", arms, rounds, case.arrive)
    kind.prepare_resources = original
    case.require_reuse()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="two sizes, few rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args()
    rounds = 20 if options.quick else options.rounds

    def rows() -> Iterator[Row]:
        for size in QUICK if options.quick else SIZES:
            for are_new in (False, True):
                with upstream(VARIANT, "cpu"):
                    case = Arrivals(*size, are_new=are_new)
                    yield from compared_arms(case, rounds)
                    case.server.close()

    report("overlay.csv", rows(), options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
