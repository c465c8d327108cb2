"""Where requests come to the executor and answers leave it."""

import queue
import threading
from dataclasses import dataclass
from typing import Any

from .._torch.pyexecutor.llm_request import LlmRequest, LlmRequestState

CANCELLED = "cancelled"


@dataclass(frozen=True)
class LlmResponse:
    request_id: int
    tokens: list[int]
    error_msg: str | None = None


class FrontDesk:
    """The executor is one of these: its loop takes requests from here, and says what became of them."""

    model_engine: Any

    def __init__(self) -> None:
        self.active_requests: list[LlmRequest] = []  # the loop's
        self.is_shutdown = False
        self.responses: dict[int, LlmResponse] = {}
        self.response_cv = threading.Condition()  # guards responses
        self.canceled_req_ids: list[int] = []  # the loop's
        self._waiting: queue.Queue[list[LlmRequest] | int | None] = queue.Queue()

    # From other threads.

    def enqueue_requests(self, requests: list[LlmRequest]) -> list[int]:
        """Refuses at the door what no step could take whole."""
        max_num_tokens = self.model_engine.max_num_tokens
        chunked = self.model_engine.attn_runtime_features.chunked_prefill
        for request in requests:
            if request.prompt_len > max_num_tokens and not chunked:
                raise ValueError(
                    f"request {request.request_id} has {request.prompt_len} tokens, max_num_tokens is "
                    f"{max_num_tokens}, and prefill is not chunked"
                )
        self._waiting.put(list(requests))
        return [request.request_id for request in requests]

    def enqueue_cancel_request(self, request_id: int) -> None:
        self._waiting.put(request_id)

    def await_responses(self, request_ids: list[int], timeout: float) -> list[LlmResponse] | None:
        """None after `timeout` seconds: nothing says that the loop is dead (surface 5, #13318)."""
        with self.response_cv:
            if not self.response_cv.wait_for(lambda: all(i in self.responses for i in request_ids), timeout):
                return None
            return [self.responses[request_id] for request_id in request_ids]

    def _no_more_requests(self) -> None:
        self._waiting.put(None)

    # From the loop's.

    def _fetch_new_requests(self, *, idle: bool) -> None:
        """Sleeps only where there is nothing else to do."""
        while not self.is_shutdown:
            try:
                requests = self._waiting.get(block=idle)
            except queue.Empty:
                return
            if requests is None:
                self.is_shutdown = True
                return
            if isinstance(requests, int):
                self.canceled_req_ids.append(requests)
            else:
                self.active_requests += requests
            idle = False

    def _handle_canceled_requests(self) -> None:
        """A request that a transfer has hold of is asked about again in the next iteration."""
        active = {request.request_id: request for request in self.active_requests}
        known, self.canceled_req_ids = self.canceled_req_ids, []
        for request in [active[request_id] for request_id in known if request_id in active]:
            if request.is_in_transmission:
                self.canceled_req_ids.append(request.request_id)
            else:
                request.state = LlmRequestState.GENERATION_COMPLETE
                self._respond(request, CANCELLED)

    def _handle_responses(self) -> None:
        for request in [r for r in self.active_requests if r.is_generation_complete_state]:
            self._respond(request, None)

    def _handle_errors(self, error_msg: str) -> None:
        for request in list(self.active_requests):
            request.state = LlmRequestState.GENERATION_COMPLETE
            self._respond(request, error_msg)

    def _respond(self, request: LlmRequest, error_msg: str | None) -> None:
        self._terminate_request(request)
        with self.response_cv:
            self.responses[request.request_id] = LlmResponse(request.request_id, request.output_tokens, error_msg)
            self.response_cv.notify_all()

    def _terminate_request(self, request: LlmRequest) -> None:
        self.active_requests.remove(request)
