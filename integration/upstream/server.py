"""Upstream's own executor over the tree's managers, with bound classes, a late device and requests of the scenario."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import cuda, doubles, late, parts, provided
from integration.upstream.arrivals import Arrival, Queue
from integration.upstream.engine import Engine, Sampler
from integration.upstream.fallbacks import accepted
from integration.upstream.finder import Tree, environment
from integration.upstream.late import LateDevice
from integration.upstream.loading import EXECUTOR, load
from integration.upstream.scheduling import Scheduler

COMPUTED_ONLY_ERAS = ("C", "D")  # a release stores up to the request's position, and no further (T#12673)


@dataclass(frozen=True)
class Shape:
    """The server of a scenario. One window per layer, layers take the windows in turn."""

    tokens_per_block: int = 4
    max_seq_len: int = 64
    max_batch_size: int = 4
    blocks: int = 64
    blocks_sliding: int = 0  # of windows that are smaller than a sequence; 0: as many as of the others
    host_blocks: int = 0
    windows: tuple[int, ...] = (64,)
    heads: tuple[int, ...] = (1,)
    layers: int = 2
    beams: int = 1
    budget: int = 64
    chunked: bool = False
    chunk_max: int = 0  # tokens of one request in one batch; 0: as many as fit
    reuse: bool = True
    latent: bool = False  # MLA: one side instead of K and V
    overlap: bool = True
    events: int = 0  # that the cache's event buffer holds
    policy: str = "GUARANTEED_NO_EVICT"  # of the native manager's capacity scheduler, and of the bound one beside it

    def blocks_of(self, window: int) -> int:
        return self.blocks_sliding if self.blocks_sliding and window < self.max_seq_len else self.blocks


@dataclass
class Outcome:
    """A scenario ended like this."""

    answered: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    died: str = ""
    wrong_rows: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    moves: int = 0  # blocks that were copied
    computed: int = 0  # prompt tokens that went through the model
    fixes: dict[str, str] = field(default_factory=dict)  # word by id
    faults: dict[str, str] = field(default_factory=dict)  # first error by id
    settled: list[str] = field(default_factory=list)
    doubles_called: list[str] = field(default_factory=list)
    released: bool = True  # every block is free again
    remarks: list[str] = field(default_factory=list)  # of a kind of server, what else is wrong


class Server:
    iterations_max = 200
    engine_class: type[Engine] = Engine

    def __init__(self, tree: Tree, device: LateDevice, shape: Shape, connector: Any = None) -> None:
        self.tree, self.device, self.shape = tree, device, shape
        self.llm_request = import_module(f"{EXECUTOR}.llm_request")
        self.resources = import_module(f"{EXECUTOR}.resource_manager")
        self.batch_manager = import_module("tensorrt_llm.bindings.internal.batch_manager")
        self.connector = connector
        self.dist = self._dist()
        self.stream = cuda.Stream()
        self.manager = self._manager()
        self.engine = self.engine_class(
            self.manager, self._metadata(), shape.budget, shape.beams, chunked=shape.chunked
        )
        self.executor = self._executor()

    def _dist(self) -> Any:
        return provided.one_rank()

    def _manager(self) -> Any:
        return self._v1_manager()

    def _v1_manager(self, **more: Any) -> Any:
        shape = self.shape
        config = provided.KvCacheConfig(
            enable_block_reuse=shape.reuse,
            max_attention_window=list(shape.windows) if shape.windows != (shape.max_seq_len,) else None,
            event_buffer_max_size=shape.events,
        )
        counts = {window: (shape.blocks_of(window), shape.host_blocks) for window in sorted(set(shape.windows))}
        kind = self.resources.KVCacheManager
        given = {
            "num_layers": shape.layers,
            "num_kv_heads": [shape.heads[i % len(shape.heads)] for i in range(shape.layers)],
            "head_dim": 2,
            "tokens_per_block": shape.tokens_per_block,
            "max_seq_len": shape.max_seq_len,
            "max_batch_size": shape.max_batch_size,
            "mapping": self.dist.mapping,
            "dtype": self.batch_manager.DataType.HALF,
            "max_num_tokens": shape.budget,
            "model_config": SimpleNamespace(),
            "max_beam_width": shape.beams,
            "kv_connector_manager": self.connector,
            "execution_stream": self.stream,
        }
        if "__init__" in self.tree.lacking["KVCacheManager"]:
            given |= {"bound": self.batch_manager.KVCacheManager, "blocks_per_window": counts, "chunked": shape.chunked}
        types = self.batch_manager.CacheType
        cache_type = types.SELFKONLY if shape.latent else types.SELF
        return with_counts(kind, counts)(config, cache_type, **given, **more)

    def _metadata(self) -> Any:
        attention = import_module("tensorrt_llm._torch.attention_backend.trtllm")
        rows = self.shape.max_batch_size * self.shape.beams
        given = {
            "max_num_requests": rows,
            "max_num_sequences": rows,
            "max_num_tokens": self.shape.budget,
            "max_seq_len": None,
            "kv_cache_manager": self.manager,
            "mapping": self.dist.mapping,
            "kv_cache_params": parts.KVCacheParams(use_cache=True),
        }
        kind = attention.TrtllmAttentionMetadata
        return kind(**accepted(kind.__init__, given))

    def _managers(self, types: Any) -> dict[Any, Any]:
        """The managers in the order in which upstream's ResourceManager goes through them."""
        return {types.KV_CACHE_MANAGER: self.manager}

    def _executor(self) -> Any:
        module = import_module(f"{EXECUTOR}.py_executor")
        types = self.resources.ResourceManagerType
        managers = self.resources.ResourceManager(self._managers(types))
        states = self.batch_manager.LlmRequestState
        sampler = self._sampler(states)
        sampler.finish_reason = self.batch_manager.FinishReason.LENGTH
        given = {
            "resource_manager": managers,
            "scheduler": self._scheduler(states),
            "model_engine": self._model_engine(),
            "sampler": sampler,
            "dist": self.dist,
            "max_num_sequences": self.shape.max_batch_size,
            "disable_overlap_scheduler": not self.shape.overlap,
            "max_batch_size": self.shape.max_batch_size,
            "max_beam_width": self.shape.beams,
            "start_worker": False,
            "kv_connector_manager": self.connector,
            "max_seq_len": self.shape.max_seq_len,
            "execution_stream": self.stream,
        }
        if "__init__" in self.tree.lacking["PyExecutor"]:
            given |= {"states": states, "batch_class": module.ScheduledRequests}
            given |= {"sent_schedule_class": module.SerializableSchedulerOutput, "ids_class": module.ReqIdsSet}
            given |= self._executor_sets()
            executor = module.PyExecutor(**given)
        else:
            executor = module.PyExecutor(**accepted(module.PyExecutor.__init__, given))
        executor.canceled_req_ids = []
        return executor

    def _executor_sets(self) -> dict[str, Any]:
        """What the constructor sets besides, where it is ours."""
        return {}

    def _sampler(self, states: Any) -> Sampler:
        return Sampler(self.engine, provided_state(), parts.SamplerEvent, states)

    def _scheduler(self, states: Any) -> Any:
        return Scheduler(self.shape, states)

    def _model_engine(self) -> Any:
        """The executor calls this."""
        return self.engine

    def _queue(self, arrivals: list[Arrival], cancels: dict[int, list[int]]) -> Queue:
        return Queue(self, arrivals, cancels)

    def request(self, arrival: Arrival) -> Any:
        sampling = self.batch_manager.SamplingConfig(self.shape.beams)
        made = self.llm_request.LlmRequest(
            request_id=arrival.id,
            max_new_tokens=arrival.new_tokens,
            input_tokens=arrival.prompt,
            sampling_config=sampling,
            is_streaming=False,
            **self.keywords_of(arrival),
        )
        made.py_forwarded, made.py_generates_from = 0, len(arrival.prompt)
        made.py_beam_width = self.shape.beams
        return made

    def keywords_of(self, arrival: Arrival) -> dict[str, Any]:
        """Upstream passes these besides to the constructor of this request."""
        del arrival
        return {}

    def serve(self, arrivals: list[Arrival], cancels: dict[int, list[int]] | None = None) -> Outcome:
        """Run the executor's own loop in this thread until everybody is answered, or it dies."""
        outcome = Outcome()
        self.executor.executor_request_queue = self._queue(arrivals, cancels or {})
        doubles.called.clear()
        try:
            self.executor.event_loop()
        except Exception as error:
            outcome.died = f"{type(error).__name__}: {error}"
        self.device.settle()
        for request_id, responses in self.executor.responses.items():
            message = next((each.error_msg for each in responses if each.error_msg), None)
            if message:
                outcome.failed[request_id] = message
            elif any(each.result.is_final for each in responses):
                outcome.answered.append(request_id)
        self._look(outcome)
        return outcome

    def _look(self, outcome: Outcome) -> None:
        findings, contents = self.engine.findings, self.engine.contents
        outcome.wrong_rows, outcome.corrupt = findings.wrong_rows, contents.corrupt
        outcome.batches, outcome.moves = findings.batches, findings.moves
        outcome.computed = sum(end - begin for batch in findings.batches for _, begin, end in batch["contexts"])
        outcome.calls = list(self.manager.impl.witness_calls())
        outcome.settled = list(self.device.settled)
        outcome.doubles_called = sorted(doubles.called)
        free = {window: self.manager.impl.witness_free(window) for window in set(self.manager.max_attention_window_vec)}
        outcome.released = all(count == self.shape.blocks_of(window) for window, count in free.items())


def provided_state() -> Any:
    """The loops look at `.device` of what the sampler returns; the engine's batch goes along."""

    class State(parts.SampleState):
        batch: Any = None

    return State


def with_counts(kind: Any, blocks: dict[int, tuple[int, int]]) -> Any:
    """The number of blocks of each window is chosen by the scenario, not worked out from the memory of a GPU."""

    class KVCacheManager(kind):  # type: ignore[misc]
        def calculate_max_num_blocks(self, **_: Any) -> Any:
            return next(iter(blocks.values()))

        def calculate_max_num_blocks_for_vswa(self, **_: Any) -> Any:
            return blocks

        calculate_max_num_blocks_from_cpp = calculate_max_num_blocks_for_vswa

    return KVCacheManager


@contextmanager
def upstream(root: Path, era: str) -> Iterator[tuple[Tree, LateDevice, provided.Logger]]:
    """The tree is `tensorrt_llm`, and torch has a late CUDA device."""
    logger = provided.Logger()
    with cuda.simulated() as device, environment(root, provided.modules(era, logger)) as tree:
        bound = provided.bound_module()
        bound.set_computed_only(era in COMPUTED_ONLY_ERAS)
        bound.set_tensor_factory(tensor_factory)
        bound.set_launcher(device.launch)
        try:
            load(tree)
            yield tree, device, logger
        finally:
            bound.set_tensor_factory(None)
            bound.set_launcher(None)


def tensor_factory(shape: tuple[int, ...], dtype: str, pinned: bool) -> Any:
    """Pools lie on the device; tables of pointers and layers are filled by the extension, so they are plain."""
    kind = getattr(torch, dtype)
    return torch.zeros(shape, dtype=kind) if pinned else late.on_device(tuple(shape), kind)
