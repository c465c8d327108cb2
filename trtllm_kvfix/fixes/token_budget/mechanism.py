"""Where the budget is enforced: around `ResourceManager.prepare_resources`, and before a connector hears of the batch.

In the versions that need this fix the KV-cache manager reports the batch to the connector from inside its own
`prepare_resources`. So where there is a connector the batch is fitted just before that report, and the connector hears
of a request's blocks only if the request stays: it never learns of blocks that are given back.

Batches of requests whose cache arrives from elsewhere reach the KV-cache manager directly, without the ResourceManager;
they compute nothing and are left alone.

With pipeline parallelism nothing is changed. There one rank schedules and the others run what it sends them, and the
loop has noted who is in flight and who finishes its prompt before blocks are allocated: it would act on the old batch.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from trtllm_kvfix.fixes.batches import is_arriving
from trtllm_kvfix.fixes.token_budget.fitting import Limits, batch_tokens, fit, tell
from trtllm_kvfix.metrics import counters

log = logging.getLogger("trtllm_kvfix")

MAIN = "KV_CACHE_MANAGER"
KEPT = ("PEFT_CACHE_MANAGER",)  # adapters are placed by batch; nothing of a request is held there


class Preparation:
    """One batch on its way through `prepare_resources`."""

    def __init__(self, batch: Any, limits: Limits, managers: dict[Any, Any]) -> None:
        self.batch = batch
        self.limits = limits
        self.managers = managers
        self.order = list(batch.context_requests)  # who came first keeps its place
        self.new = {request.py_request_id for request in self.order if self._enters(request)}
        self.allocated: list[tuple[Any, Any]] = []  # what the connector is still to be told
        self.fitted = False
        self.putting_back: Any = None  # the request that is losing its blocks at this moment

    def _enters(self, request: Any) -> bool:
        """It gets its blocks in this iteration, and not from an asynchronous load of the connector before."""
        if not request.is_first_context_chunk:
            return False
        connectors = (getattr(manager, "kv_connector_manager", None) for manager in self.managers.values())
        return all(connector is None or connector.should_add_sequence(request) for connector in connectors)

    def fit(self, is_loading: Callable[[Any], bool]) -> None:
        """Once; later calls find it done."""
        if self.fitted:
            return
        self.fitted = True

        def spared(request: Any) -> bool:
            return is_arriving(request) or is_loading(request)

        before = batch_tokens(self.batch, spared)
        if before <= self.limits.max_num_tokens:
            return
        result = fit(self.batch, self.limits, spared=spared, contexts=self.order)
        for self.putting_back in result.deferred:
            self._put_back(self.putting_back)
        self.putting_back = None
        counters.budget_trimmed_tokens.add(before - result.tokens)
        tell(result, self.limits, before)

    def _put_back(self, request: Any) -> None:
        """As the executor pauses a request. `BudgetKeeper.releasing` sees to it that nothing is stored for reuse.

        A request that had its blocks before keeps them: they hold what is computed or loaded, and are scheduled again.
        """
        if request.py_request_id not in self.new:
            return
        for kind, manager in reversed(self.managers.items()):
            if hasattr(manager, "free_resources") and getattr(kind, "name", kind) not in KEPT:
                manager.free_resources(request)
        request.pause(request.prompt_len)


class BudgetKeeper:
    """The replacements, and the limits of each executor by its resource manager."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, Limits | None] = WeakKeyDictionary()
        self._of_thread = threading.local()

    def learning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `PyExecutor._schedule`: runs in the loop before every batch, when the executor is complete."""

        def _schedule(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if executor.resource_manager not in self._known:
                self._known[executor.resource_manager] = limits_of(executor)
            return original(executor, *args, **kwargs)

        return _schedule

    def fitting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `ResourceManager.prepare_resources`."""

        def prepare_resources(manager: Any, scheduled_batch: Any) -> Any:
            limits = self._known.get(manager)
            # None: warm-up, before the loop has scheduled anything. And generations alone cannot be put off.
            if limits is None or not scheduled_batch.context_requests:
                return original(manager, scheduled_batch)
            current = Preparation(scheduled_batch, limits, manager.resource_managers)
            self._of_thread.current = current
            try:
                result = original(manager, scheduled_batch)
                current.fit(lambda _: False)
            finally:
                self._of_thread.current = None
            return result

        return prepare_resources

    def releasing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `KVCacheManager.free_resources`, which subclasses call: who is put off has computed nothing to store."""

        def free_resources(manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            current = self._current()
            if current is not None and current.putting_back is request:
                return manager.impl.remove_sequence(request.py_request_id, None, False)
            return original(manager, request, *args, **kwargs)

        return free_resources

    def holding_back(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `KvCacheConnectorManager.update_state_after_alloc`: told once it is known which requests stay."""

        def update_state_after_alloc(connector: Any, req: Any, block_ids: Any) -> Any:
            current = self._current()
            if current is None or current.fitted:
                return original(connector, req, block_ids)
            current.allocated.append((req, block_ids))
            return None

        return update_state_after_alloc

    def reporting(self, update: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """For `KvCacheConnectorManager.build_scheduler_output`; `update` is the original `update_state_after_alloc`."""

        def build_scheduler_output(connector: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
            current = self._current()
            if current is not None and current.batch is scheduled_batch:
                current.fit(partial(is_loading, connector))
                staying = {request.py_request_id for request in scheduled_batch.context_requests}
                for request, block_ids in current.allocated:
                    if request.py_request_id in staying:
                        update(connector, request, block_ids)
                current.allocated.clear()
            return original(connector, scheduled_batch, *args, **kwargs)

        return build_scheduler_output

    def _current(self) -> Preparation | None:
        current: Preparation | None = getattr(self._of_thread, "current", None)
        return current


def is_loading(connector: Any, request: Any) -> bool:
    """The connector fetches its prompt asynchronously, and takes it out of the batch before the step."""
    asynchronous = getattr(connector, "new_async_requests", None)
    return asynchronous is not None and request.request_id in asynchronous.loading


def limits_of(executor: Any) -> Limits | None:
    """The engine's own limit is the one that it asserts. None where batches must stay as they are, which is said."""
    engine = executor.model_engine
    max_num_tokens = getattr(engine, "max_num_tokens", None) or getattr(executor, "max_num_tokens", None)
    stages = getattr(getattr(executor, "dist", None), "pp_size", 1)
    if stages > 1 or max_num_tokens is None:
        why = f"it has {stages} pipeline stages" if stages > 1 else "it does not tell its max_num_tokens"
        log.warning("token-budget leaves the batches of this engine alone: %s", why)
        return None
    features = getattr(engine, "attn_runtime_features", None)
    managers = executor.resource_manager.resource_managers
    manager = next((each for kind, each in managers.items() if getattr(kind, "name", kind) == MAIN), None)
    return Limits(
        max_num_tokens=int(max_num_tokens),
        chunked_prefill=bool(getattr(features, "chunked_prefill", False)),
        tokens_per_block=int(getattr(manager, "tokens_per_block", 1)),
    )
