"""The order in which an executor is made: every manager twice (surface 3.3)."""

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from ..._standin.connector import KvCacheConnectorManager
from ..._utils import mpi_rank
from ._util import KvCacheCreator, create_py_executor_instance, make_execution_stream, make_model_engines


def _make_kv_connector_manager(llm_args: Any, model_engine: Any) -> Any:
    """A module named in the configuration is imported in every rank (surface 6.3)."""
    config = llm_args.kv_connector_config
    if config is None:
        return None
    module = import_module(config.connector_module)
    worker_class = getattr(module, config.connector_worker_class)
    scheduler_class = getattr(module, config.connector_scheduler_class)
    # Each may wait for the other while it is made. The scheduler side exists on rank 0 only.
    with ThreadPoolExecutor(max_workers=2) as pool:
        making_worker = pool.submit(worker_class, llm_args)
        making_scheduler = pool.submit(scheduler_class, llm_args) if mpi_rank() == 0 else None
        scheduler = None if making_scheduler is None else making_scheduler.result()
        worker = making_worker.result()
    called = worker.register_forward_pass_callable()
    if called is not None:
        model_engine.register_forward_pass_callable(called)
    return KvCacheConnectorManager(worker, scheduler)


def create_py_executor(llm_args: Any) -> Any:
    model_engine, draft_model_engine = make_model_engines(llm_args)
    kv_connector_manager = _make_kv_connector_manager(llm_args, model_engine)
    execution_stream = make_execution_stream()
    creator = KvCacheCreator(
        llm_args=llm_args,
        model_engine=model_engine,
        draft_model_engine=draft_model_engine,
        kv_connector_manager=kv_connector_manager,
        execution_stream=execution_stream,
    )
    # To learn how much memory is left, upstream runs an executor on a small cache, and throws both away.
    resources: dict[Any, Any] = {}
    creator.build_managers(resources, estimating_kv_cache=True)
    creator.teardown_managers(resources)
    creator.build_managers(resources)
    py_executor = create_py_executor_instance(
        llm_args=llm_args,
        resources=resources,
        model_engine=model_engine,
        draft_model_engine=draft_model_engine,
        kv_connector_manager=kv_connector_manager,
        execution_stream=execution_stream,
    )
    py_executor.start_worker()
    return py_executor
