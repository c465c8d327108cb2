"""A manager of the stand-in with its batch, and how the arms of a comparison take turns on it."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from measure import REPOSITORY, Row, Summary, quiet_garbage_collector

sys.path.insert(0, str(REPOSITORY))  # the stand-in lives among the tests
from tests.standin.fixture import upstream
from tests.standin.serving import Server

TOKENS_PER_BLOCK = 4
WARM_UP_ROUNDS = 3

Call = Callable[[], Any]


class Timed(Protocol):
    """Arms take turns on this."""

    name: str
    blocks: int
    server: Server
    stream: Any

    def settle(self) -> None:
        """The device has done what it was given."""


class Case:
    """A manager with its batch of generations, half of each prompt's room used."""

    def __init__(
        self,
        variant: str,
        sequences: int,
        blocks: int,
        *,
        v2: bool = False,
        per_layer: bool = False,
        on_gpu: bool = False,
    ) -> None:
        self.on_gpu, self.per_layer = on_gpu, per_layer
        max_seq_len = blocks * TOKENS_PER_BLOCK
        cache = {"max_tokens": sequences * max_seq_len, "enable_block_reuse": False, "use_kv_cache_manager_v2": v2}
        if per_layer:
            cache["enable_swa_scratch_reuse"] = True
        args = {"max_batch_size": sequences, "max_seq_len": max_seq_len, "kv_cache_config": cache}
        self.name = f"{variant}-{'v2' if v2 else 'v1'}{'-per-layer' * per_layer}-{sequences}x{blocks}"
        self.v2, self.blocks = v2, blocks
        self.server = Server(args)
        self.manager = self.server.manager
        self.stream = getattr(self.server.executor, "execution_stream", None) or self.server.tensors.stream()
        self.room, self.grown = max_seq_len // 2, 0  # tokens of each request
        self.requests = [self.server.request(i, [i] * self.room, self.room) for i in range(sequences)]
        for request in self.requests:
            self._admit(request)
            request.context_current_position = request.prompt_len
            request.state = self.server.requests.LlmRequestState.GENERATION_IN_PROGRESS
        self.ids = [request.request_id for request in self.requests]
        shape = (self.manager.num_pools, sequences, 2, self.manager.max_blocks_per_seq)
        self.destination = self.server.tensors.on_device(*shape)

    def grow(self) -> None:
        """A token for each request; from the beginning again where there is no room left."""
        if self.grown == self.room:
            self._shrink(self.room)
        self.grown += 1
        for request in self.requests:
            if self.v2:
                self.manager.try_allocate_generation(request)
            else:
                self.manager.impl.add_token(request.request_id)

    def _shrink(self, tokens: int) -> None:
        self.grown -= tokens
        for request in self.requests:
            if self.v2:
                kv_cache = self.manager.kv_cache_map[request.request_id]
                kv_cache.resize(kv_cache.capacity - tokens)
            else:
                self.manager.impl.rewind_kv_cache(request.request_id, tokens)

    def ship(self) -> None:
        at = (self.ids, 1, 0, len(self.ids))
        self.manager.copy_batch_block_offsets(self.destination, *at)

    def settle(self) -> None:
        self.stream.synchronize()

    def check(self) -> None:
        expected = self.manager.standin_truth(self.ids, [1] * len(self.ids))
        host = self.server.tensors.pinned(*self.destination.shape)
        host.copy_(self.destination)
        seen = host.numpy()[..., : expected.shape[3]]
        if not np.array_equal(seen[expected != -1], expected[expected != -1]):
            raise RuntimeError(f"{self.name}: what arrived is not what the manager says")

    def _admit(self, request: Any) -> None:
        impl, info = self.manager.impl, (request.request_id, request.prompt_len, 1)
        if self.v2:
            self.manager.prepare_context(request)
        elif hasattr(impl, "add_sequence_batch"):
            impl.add_sequence_batch([info], [request])
        else:
            impl.add_sequence(*info, request)


def alternate(case: Timed, arms: Sequence[Call], rounds: int, between: Call) -> list[list[float]]:
    """Microseconds of each arm; another arm goes first in each round."""
    taken: list[list[float]] = [[] for _ in arms]
    with case.server.tensors.on(case.stream), quiet_garbage_collector():
        for number in range(rounds + WARM_UP_ROUNDS):
            for index in range(len(arms))[:: 1 if number % 2 else -1]:
                between()
                case.settle()
                begin = time.perf_counter_ns()
                arms[index]()
                spent_us = (time.perf_counter_ns() - begin) / 1e3
                if number >= WARM_UP_ROUNDS:
                    taken[index].append(spent_us)
    return taken


def compared(case: Timed, metric: str, arms: dict[str, Call], rounds: int, between: Call) -> Iterator[Row]:
    taken = alternate(case, list(arms.values()), rounds, between)
    base = np.array(taken[0])
    for name, values in zip(arms, taken, strict=True):
        ratio = Summary.of((np.array(values) / np.median(base)).tolist())
        yield Row(case.name, case.blocks, name, metric, Summary.of(values), ratio)


@contextmanager
def cases(
    variant: str, device: str, sequences: int, blocks: int, *, v2: bool = False, per_layer: bool = False
) -> Iterator[Case]:
    with upstream(variant, device):
        case = Case(variant, sequences, blocks, v2=v2, per_layer=per_layer, on_gpu=device != "cpu")
        yield case
        case.server.close()
