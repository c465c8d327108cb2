"""The block manager driven through a workload, timed around calls into `trtllm_kvfix.native` alone.

admit   make the wave's SequenceRequest objects from its tokens, add_sequence_batch; with two tiers also take_transfers
        and complete
store   store_context_blocks of each request, which is when its blocks become reusable
step    one add_tokens for the wave, by ids or of a decode batch; with two tiers also take_transfers and complete
finish  remove_sequence of each request
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from measure import quiet_garbage_collector
from numpy.typing import NDArray
from workloads import Tokens, Wave, Workload

from trtllm_kvfix.native import BatchAdmission, BlockManager, BlockManagerConfig, SequenceRequest


class Variant(NamedTuple):
    """A caller holds the tokens of a prompt in some form, and turns them into SequenceRequest's argument."""

    name: str
    held: Callable[[Tokens], Any] = lambda tokens: tokens  # not timed
    passed: Callable[[Any], Any] | None = None  # timed
    partial_reuse: bool = True
    decode_batch: bool = False  # made when the wave begins to generate, which is not timed


OURS = Variant("trtllm-kvfix")
DECODE_BATCH = Variant("trtllm-kvfix, decode batch", decode_batch=True)
VARIANTS = (
    OURS,
    Variant("without partial reuse", partial_reuse=False),
    Variant("list", held=np.ndarray.tolist),
    Variant("list, np.asarray", held=np.ndarray.tolist, passed=lambda tokens: np.asarray(tokens, np.int32)),
)


class Costs(NamedTuple):
    """Nanoseconds of each timed wave, and of each step."""

    admit_ns: NDArray[np.int64]
    store_ns: NDArray[np.int64]
    step_ns: NDArray[np.int64]
    finish_ns: NDArray[np.int64]
    tokens_reused: int


def run(workload: Workload, tokens_per_block: int, variant: Variant = OURS) -> Costs:
    manager = BlockManager(
        BlockManagerConfig(
            tokens_per_block=tokens_per_block,
            blocks_primary=workload.tokens_primary // tokens_per_block,
            blocks_host=workload.tokens_host // tokens_per_block,
            partial_reuse=variant.partial_reuse,
        )
    )
    with quiet_garbage_collector():
        return _Driver(manager, workload, variant).run()


class _Driver:
    def __init__(self, manager: BlockManager, workload: Workload, variant: Variant) -> None:
        self._manager = manager
        self._workload = workload
        self._variant = variant
        self._two_tiers = workload.tokens_host > 0
        self._step_ns: list[int] = []

    def run(self) -> Costs:
        admit_ns, store_ns, finish_ns, reused = [], [], [], 0
        request_id_first = 0
        for wave in self._workload.waves:
            ids = list(range(request_id_first, request_id_first + len(wave.prompts)))
            request_id_first += len(ids)
            prompts = [self._variant.held(prompt) for prompt in wave.prompts]
            began = perf_counter_ns()
            admission = self._admit(ids, prompts)
            admitted = perf_counter_ns()
            if not self._two_tiers:
                self._transfer()  # copies for partial reuse, of which the floor has none
            store_from = perf_counter_ns()
            self._store(ids, wave.prompts)
            stored = perf_counter_ns()
            lengths = self._generate(ids, wave)
            finish_from = perf_counter_ns()
            for request_id, length in zip(ids, lengths.tolist(), strict=True):
                self._manager.remove_sequence(request_id, computed=length)
            finished = perf_counter_ns()
            if wave.timed:
                reused += sum(admitted.tokens_reused for admitted in admission.admitted)
                admit_ns.append(admitted - began)
                store_ns.append(stored - store_from)
                finish_ns.append(finished - finish_from)
        admit, store, step, finish = (np.array(ns, np.int64) for ns in (admit_ns, store_ns, self._step_ns, finish_ns))
        return Costs(admit, store, step, finish, reused)

    def _admit(self, ids: list[int], prompts: list[Any]) -> BatchAdmission:
        passed = self._variant.passed
        if passed is None:
            requests = [SequenceRequest(request_id, prompt) for request_id, prompt in zip(ids, prompts, strict=True)]
        else:
            requests = [SequenceRequest(row, passed(prompt)) for row, prompt in zip(ids, prompts, strict=True)]
        admission = self._manager.add_sequence_batch(requests)
        if self._two_tiers:
            self._transfer()
        return admission

    def _store(self, ids: list[int], prompts: list[Tokens]) -> None:
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._manager.store_context_blocks(request_id, len(prompt))

    def _generate(self, ids: list[int], wave: Wave) -> NDArray[np.int64]:
        """Returns the sequences' lengths at the end. Whatever a step reserves is computed before the next."""
        columns = np.ascontiguousarray(wave.answers.T)
        id_array, counts = np.array(ids, np.int64), np.ones(len(ids), np.int64)
        lengths = np.array([len(prompt) for prompt in wave.prompts], np.int64)
        manager, two_tiers, took = self._manager, self._two_tiers, self._step_ns.append
        if self._variant.decode_batch:
            batch = manager.decode_batch(id_array)
            for column in columns:
                began = perf_counter_ns()
                batch.add_tokens(column, computed=True)
                if two_tiers:
                    self._transfer()
                took(perf_counter_ns() - began)
            return lengths + len(columns)
        for column in columns:
            began = perf_counter_ns()
            manager.add_tokens(id_array, counts, column, computed=lengths)
            if two_tiers:
                self._transfer()
            took(perf_counter_ns() - began)
            lengths += counts
        return lengths

    def _transfer(self) -> None:
        self._manager.complete(self._manager.take_transfers().ticket)
