"""The newest V2 manager and scheduler under an executor's loop, the summer's (N), or the newest (O). Both are of other
commits than the manager: inferred."""

import sys
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from integration.upstream import late, newest_executor, v2_memory
from integration.upstream.arrivals import Arrival
from integration.upstream.engine import Batch, Engine
from integration.upstream.fallbacks import complete
from integration.upstream.loading import V2_BINDINGS
from integration.upstream.server import Outcome, Server
from integration.upstream.v2_methods import EXECUTOR, MANAGER, NAMES, SCHEDULER, Manager, Steps, request_class
from integration.upstream.v2_theirs import runtime_for
from trtllm_kvfix.staging import current_place

REGISTER = "_maybe_init_kv_connector_manager"


class V2Engine(Engine):
    """It does not report its input copies, like AutoDeploy's engine, so no loop waits for them.

    Where the runtime's copies are on streams, what a step writes and reads in the cache is on its stream, too.
    """

    def __init__(self, manager: Any, *given: Any, **named: Any) -> None:
        super().__init__(manager, *given, **named)
        self.order = manager.impl.order
        if self.order is not None:
            manager.impl.begin(self._moved, late.late().settle)

    def _launched(self, *args: Any) -> Batch:
        batch = super()._launched(*args)
        for row, offsets in batch.expected.items():
            batch.expected[row] = [max(0, offset) for offset in offsets]  # the kernel's answer to BAD_PAGE
        if self.order is not None:
            has_table = torch.cuda.Event()
            has_table.record()
            stream, batch.end = current_place().stream, self.order.new()
            self.order.enqueue(stream, partial(self.carry_out, batch), has_table.query)
            self.order.record(batch.end, stream)
        return batch

    def ran(self, batch: Batch) -> None:
        if self.order is None:
            super().ran(batch)
            return
        self.rows_read(batch)
        self.order.finish(partial(self.order.is_done, batch.end))

    def _moved(self, *move: Any) -> None:
        self.findings.moves += 1
        self.contents.transfer(*move)


class AwaitedEngine(V2Engine):
    """The executor can wait until the input copies of the last step have been made, as with upstream's own engine."""

    _input_copy: Any = None

    def _prepare(self, *args: Any) -> None:
        super()._prepare(*args)
        self._input_copy = torch.cuda.Event()
        self._input_copy.record()

    def wait_for_input_copy(self) -> None:
        if self._input_copy is not None:
            self._input_copy.synchronize()


class V2Server(Server):
    engine_class: type[Engine] = V2Engine

    def _manager(self) -> Any:
        for name, names in NAMES.items():
            vars(import_module(name)).update(names)
        module = import_module(MANAGER)
        lacking = self.tree.lacking.get("KVCacheManagerV2", [])
        self.tree.lacking["KVCacheManagerV2"] = lacking + complete(module, "KVCacheManagerV2", Manager)
        if self.connector is not None and not self.does_its_steps:
            self.connector.configure_prefix_reservations(enabled=True)
            self.connector.reject_flat_only_scheduler(len(self.shape.windows))
        mapper = sys.modules[V2_BINDINGS].IndexMapper
        runtime = runtime_for(self.tree, self.shape, self.stream.cuda_stream)
        return module.KVCacheManagerV2(self.shape, self.connector, self.stream, mapper, runtime)

    def _executor(self) -> Any:
        kind = import_module(f"{EXECUTOR}.py_executor").PyExecutor
        its_own = self.does_its_steps
        ours = mock.patch.object(kind, REGISTER, v2_memory.register)
        with newest_executor.registering(self.manager) if its_own else ours:
            executor = super()._executor()
        executor._is_kv_manager_v2 = True
        added = newest_executor.Fetch if its_own else Steps
        steps = [name for name in vars(added) if not name.startswith("__")]
        for name in steps:
            setattr(executor, name, getattr(added, name).__get__(executor))
        self.tree.lacking["PyExecutor, as the newest does it"] = steps if its_own else [REGISTER, *steps]
        executor.batch_class.recompute_paused_requests = ()
        return executor

    @property
    def does_its_steps(self) -> bool:
        """Whether the executor of the tree is the newest, which does with a connector what N's lacks."""
        return newest_executor.ITS_OWN in vars(import_module(f"{EXECUTOR}.py_executor").PyExecutor)

    def _executor_sets(self) -> dict[str, Any]:
        return newest_executor.sets() if self.does_its_steps else {}

    def _scheduler(self, states: Any) -> Any:
        del states
        module = import_module(SCHEDULER)
        # It looks for the manager in the place where that lay when the excerpt was written.
        with mock.patch.dict(sys.modules, {f"{EXECUTOR}.kv_cache_manager_v2": import_module(MANAGER)}):
            return module.KVCacheV2Scheduler(
                max_batch_size=self.shape.max_batch_size,
                max_num_tokens=self.shape.budget,
                kv_cache_manager=self.manager,
                scheduler_policy=module.CapacitySchedulerPolicy.MAX_UTILIZATION,
                ctx_chunk_config=(None, self.shape.tokens_per_block) if self.shape.chunked else None,
            )

    def _look(self, outcome: Outcome) -> None:
        order = self.manager.impl.order
        if order is not None:
            order.finish_all()
        super()._look(outcome)

    def request(self, arrival: Arrival) -> Any:
        plain = self.llm_request.LlmRequest
        with mock.patch.object(self.llm_request, "LlmRequest", request_class(plain)):
            return super().request(arrival)


class AwaitedV2Server(V2Server):
    engine_class = AwaitedEngine
