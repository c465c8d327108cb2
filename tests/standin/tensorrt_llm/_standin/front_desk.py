"""Requests come to the executor here, and answers leave it. So do calls for which the loop must stand still."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .._torch.pyexecutor.llm_request import FinishReason, LlmRequest, LlmRequestState

CANCELLED = "cancelled"


@dataclass(frozen=True)
class LlmResponse:
    request_id: int
    tokens: list[int]
    error_msg: str | None = None


@dataclass(frozen=True, eq=False)
class ControlRequest:
    reached: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class FrontDesk:
    """The executor is one of these: its loop takes requests from here, and says what became of them."""

    model_engine: Any
    _may_terminate: Any
    _terminate_request: Any

    def __init__(self) -> None:
        self.active_requests: list[LlmRequest] = []  # the loop's
        self.is_shutdown = False
        self.responses: dict[int, LlmResponse] = {}
        self.response_cv = threading.Condition()  # guards responses
        self.canceled_req_ids: list[int] = []  # the loop's
        self._cancelled: set[int] = set()  # the loop's, until they are answered
        self._waiting: queue.Queue[list[LlmRequest] | ControlRequest | int | None] = queue.Queue()
        self._control: ControlRequest | None = None  # the loop's, until no request is active

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

    @contextmanager
    def control_action(self) -> Iterator[None]:
        """The loop has no request, and takes none, until the caller is done."""
        control = ControlRequest()
        self._waiting.put(control)
        control.reached.wait()
        try:
            yield
        finally:
            control.done.set()

    def _no_more_requests(self) -> None:
        self._waiting.put(None)

    # From the loop's.

    def _fetch_new_requests(self, *, idle: bool) -> None:
        """Sleeps only where there is nothing else to do."""
        while not self.is_shutdown:
            if self._control is not None:
                if self.active_requests:
                    return
                self._control.reached.set()
                self._control.done.wait()
                self._control = None
            try:
                requests = self._waiting.get(block=idle)
            except queue.Empty:
                return
            if requests is None:
                self.is_shutdown = True
                return
            if isinstance(requests, ControlRequest):
                self._control = requests
            elif isinstance(requests, int):
                self.canceled_req_ids.append(requests)
            else:
                self.active_requests += requests
            idle = False

    def _handle_canceled_requests(self) -> None:
        """They end at once, whatever a connector may be doing with their blocks: only a transceiver would be asked."""
        known, self.canceled_req_ids = self.canceled_req_ids, []
        for request in [each for each in self.active_requests if each.request_id in known]:
            self._cancelled.add(request.request_id)
            request.finish_by_reason(FinishReason.CANCELLED)

    def _handle_responses(self) -> None:
        """Finished requests leave the loop; their blocks may have to stay."""
        finished = [request for request in self.active_requests if request.is_finished]
        for request in finished:
            self.active_requests.remove(request)
        for request in finished:
            if self._may_terminate(request):
                self._terminate_request(request)
            cancelled = request.request_id in self._cancelled
            self._cancelled.discard(request.request_id)
            self._respond(request, CANCELLED if cancelled else None)

    def _handle_errors(self, error_msg: str) -> None:
        failed = list(self.active_requests)
        self.active_requests.clear()
        for request in failed:
            request.state = LlmRequestState.GENERATION_COMPLETE
            self._terminate_request(request)
            self._respond(request, error_msg)

    def _respond(self, request: LlmRequest, error_msg: str | None) -> None:
        with self.response_cv:
            self.responses[request.request_id] = LlmResponse(request.request_id, request.output_tokens, error_msg)
            self.response_cv.notify_all()
