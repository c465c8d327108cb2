"""The loop calls a connector for a batch's loads before a step, and for the ends of requests behind it."""

import logging
from typing import Any

from .connector_start import start
from .contents import Contents
from .saving import AsyncTransferManager
from .tensors import tensors
from .variant import since

logger = logging.getLogger("tensorrt_llm")


class ConnectorSteps:
    """The executor is one of these."""

    kv_connector_manager: Any
    kv_cache_manager: Any
    async_transfer_manager: AsyncTransferManager
    resource_manager: Any
    response_cv: Any
    _terminate_request: Any

    def _connect(self, kv_connector_manager: Any, model: Any) -> Contents | None:
        """A V2 manager of the stand-in has no bytes, so nobody looks at what its blocks hold."""
        with tensors().on(tensors().stream()):
            start(kv_connector_manager, model, self.kv_cache_manager)
        return None if hasattr(self.kv_cache_manager, "get_kv_cache_layout") else Contents()

    def _kv_connector_start_batch(self, scheduled_batch: Any) -> None:
        if self.kv_connector_manager is not None:
            self.kv_connector_manager.take_scheduled_requests_pending_load(scheduled_batch)
            self.kv_connector_manager.handle_metadata()
            self.kv_connector_manager.worker.start_load_kv(tensors().current_stream())

    def _kv_connector_wait_for_save(self) -> None:
        if self.kv_connector_manager is not None:
            self.kv_connector_manager.worker.wait_for_save(tensors().current_stream())

    def _kv_connector_terminate_requests(self) -> None:
        """Nothing reads their blocks any more. In A the first alone is let go; what came with it stays pinned."""
        if self.kv_connector_manager is None:
            return
        finished = self.kv_connector_manager.get_finished()
        if since("B"):
            for request in finished:
                self._end_transfer_and_maybe_terminate(request)
        elif finished:
            self.async_transfer_manager.end_transfer(finished[0])
        with self.response_cv:  # a test may be waiting for the transfers to end
            self.response_cv.notify_all()

    if since("B"):

        def _end_transfer_and_maybe_terminate(self, request: Any) -> None:
            if self.async_transfer_manager.end_transfer(request):
                self._terminate_request(request)

        def _send_kv_async(self, requests: list[Any]) -> None:
            """Asks about the requests that end with a batch whose tokens are known. A request that was cancelled has no
            blocks, and nobody learns of it.

            With overlap a request that ended is in one batch more. Where it keeps its blocks while they are saved, it
            counts as finished there too, and the connector learns of it a second time.
            """
            if self.kv_connector_manager is None:
                return
            for request in requests:
                if request.is_finished:
                    self._kv_connector_request_finished(request)

        def _kv_connector_request_finished(self, request: Any) -> None:
            try:
                blocks = self._blocks_of(request)
            except Exception as error:
                logger.warning("request %d has no blocks, so nothing is saved: %s", request.py_request_id, error)
                return
            if self.kv_connector_manager.request_finished(request, *blocks):
                self.async_transfer_manager.start_transfer(request)

        def _blocks_of(self, request: Any) -> tuple[Any, ...]:
            """The blocks of a request, by layer group where the manager has groups."""
            grouped = getattr(self.kv_cache_manager, "get_page_indices_by_layer_group", None)
            if grouped is None:
                return (self.kv_cache_manager.get_cache_indices(request),)
            groups = grouped(request)
            return groups[0] if len(groups) == 1 else [], groups

        def _may_terminate(self, request: Any) -> bool:
            """Until C a request that is saved ends at once where blocks are reused: its pins are to hold them."""
            if not since("D") and self.async_transfer_manager.should_store_blocks:
                return True
            return not request.is_disagg_context_transmission_state

        def _do_terminate_request(self, request: Any) -> None:
            self.resource_manager.free_resources(request)

    else:

        def _may_terminate(self, request: Any) -> bool:
            del request
            return True

        def _do_terminate_request(self, request: Any) -> None:
            """The connector learns of a cancelled request, too. The sequence goes at once, and the pins are to hold
            its blocks."""
            if self.kv_connector_manager is not None:
                try:
                    blocks = self.kv_cache_manager.get_cache_indices(request)
                except (IndexError, RuntimeError):  # it never had any
                    pass
                else:
                    if self.kv_connector_manager.request_finished(request, blocks):
                        self.async_transfer_manager.start_transfer(request)
            self.resource_manager.free_resources(request)
