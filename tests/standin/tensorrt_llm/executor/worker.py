"""Every rank runs this."""

import os
from dataclasses import dataclass
from typing import Any

from .._torch.pyexecutor.llm_request import LlmRequest
from .._torch.pyexecutor.py_executor_creator import create_py_executor
from .._utils import mpi_barrier, mpi_rank

RESPONSE_S_MAX = 60.0


@dataclass(frozen=True)
class WorkerReport:
    rank: int
    pid: int
    tokens: list[list[int]]
    steps: int
    corrupt: dict[str, int]  # rows that reached attention wrong, by what they are rows of
    error: str | None


def worker_main(llm_args: Any, prompts: list[list[int]], max_tokens: int) -> WorkerReport:
    executor = create_py_executor(llm_args)
    mpi_barrier()
    try:
        requests = [LlmRequest(number, prompt, max_tokens) for number, prompt in enumerate(prompts)]
        responses = executor.await_responses(executor.enqueue_requests(requests), RESPONSE_S_MAX)
    finally:
        executor.shutdown()
    witness = executor.model_engine.witness
    errors = [response.error_msg for response in responses or () if response.error_msg is not None]
    return WorkerReport(
        rank=mpi_rank(),
        pid=os.getpid(),
        tokens=[response.tokens for response in responses or ()],
        steps=witness.steps,
        corrupt={what: len(witness.corrupt(what)) for what in ("block offsets", "prompt lens")},
        error=repr(executor.event_loop_error) if executor.event_loop_error is not None else next(iter(errors), None),
    )
