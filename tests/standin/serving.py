"""A small server: managers, scheduler, engine and loop of the stand-in, put together as upstream does."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tests.standin.stall import Stall

PYEXECUTOR = "tensorrt_llm._torch.pyexecutor"
RESPONSE_S_MAX = 120.0
LOOK_S = 0.5  # how often to look whether the loop still lives


@dataclass
class Server:
    """Build it inside `upstream(...)`: the modules are those of the variant that is imported there."""

    llm_args: dict[str, Any] = field(default_factory=dict)
    response_s_max: float = RESPONSE_S_MAX

    def __post_init__(self) -> None:
        self.tensors = import_module("tensorrt_llm._standin.tensors").tensors()
        self.pauses = import_module("tensorrt_llm._standin.pauses").begin()
        self.requests = import_module(f"{PYEXECUTOR}.llm_request")
        creator = import_module(f"{PYEXECUTOR}.py_executor_creator")
        args = import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs(**{"model": "tiny"} | self.llm_args)
        self.executor: Any = creator.create_py_executor(args)
        self.manager = self.executor.kv_cache_manager
        self.witness = self.executor.model_engine.witness
        draft = self.executor.draft_model_engine
        self.draft_witness = None if draft is None else draft.witness

    def request(self, request_id: int, tokens: list[int], max_new_tokens: int = 2, **options: Any) -> Any:
        return self.requests.LlmRequest(request_id, tokens, max_new_tokens, **options)

    def scheduled_requests(self) -> Any:
        return import_module(f"{PYEXECUTOR}.scheduler").ScheduledRequests()

    def workload(self, count: int, seed: int = 1) -> list[Any]:
        """Requests of many lengths, so that rows of the batch change hands at nearly every step."""
        made = []
        for index in range(count):
            length = 5 + (index * 7 + seed) % 23
            tokens = [1000 * index + position for position in range(length)]
            made.append(self.request(index, tokens, 2 + (index * 5 + seed) % 9))
        return made

    def stall(self, *, draft: bool = False, replay: bool = False) -> Stall:
        return Stall(self.pauses, self.tensors, draft=draft, replay=replay)

    def run(self, requests: list[Any]) -> list[Any]:
        """Serves requests until all of them are answered. They reach the loop together."""
        ids = self.executor.enqueue_requests(requests)
        for _ in range(int(self.response_s_max / LOOK_S)):
            responses = self.executor.await_responses(ids, LOOK_S)
            if responses is not None:
                return list(responses)
            if not self.executor.worker_thread.is_alive():
                raise self.executor.event_loop_error
        raise TimeoutError(f"no answer within {self.response_s_max} s, and the loop lives")

    def close(self) -> None:
        """Raises what ended the loop, if anything did."""
        self.executor.shutdown()
        if self.executor.event_loop_error is not None:
            raise self.executor.event_loop_error

    def serve(self, requests: list[Any]) -> list[Any]:
        responses = self.run(requests)
        self.close()
        return responses
