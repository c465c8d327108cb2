"""`prepare_resources` of A and B (surface 1.3)."""

from typing import Any

from ..variant import MANGLED
from .common import KVCacheManagerCommon, request_context


def add_token(self: KVCacheManagerCommon, request: Any) -> None:
    add = self.impl.grow_sequence if MANGLED else self.impl.add_token
    add(request.py_request_id)


def grow_context(self: KVCacheManagerCommon, request: Any) -> None:
    for _ in range(self.num_extra_kv_tokens + len(request.py_draft_tokens)):
        add_token(self, request)
    if self.kv_connector_manager is not None:
        block_ids = self.get_cache_indices(request)
        self.kv_connector_manager.update_state_after_alloc(request, block_ids)


def grow_generations(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    for request in scheduled_batch.generation_requests:
        for _ in range(1 + len(request.py_draft_tokens)):
            add_token(self, request)


def add_one_by_one(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    """No request's matches are claimed before an earlier one allocates (hazard H3)."""
    for request in scheduled_batch.context_requests:
        if request.is_first_context_chunk and self._kv_connector_should_add_sequence(request):
            beam_width = request.sampling_config.beam_width
            self.impl.add_sequence(request.py_request_id, request.prompt_len, beam_width, request)
            grow_context(self, request)


def prepare_resources_a(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    with request_context(self.is_draft, scheduled_batch):
        add_one_by_one(self, scheduled_batch)
        grow_generations(self, scheduled_batch)
    if self.kv_connector_manager is not None:
        self.kv_connector_manager.build_scheduler_output(scheduled_batch, self)


def prepare_resources_b(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    self.impl.sync_transfer_manager_with_buffer_manager()
    with request_context(self.is_draft, scheduled_batch):
        add_one_by_one(self, scheduled_batch)
        grow_generations(self, scheduled_batch)
        self.impl.refresh_blocks()
    if self.kv_connector_manager is not None:
        self.kv_connector_manager.build_scheduler_output(scheduled_batch, self)


def prepare_resources_b2(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    """Contexts are in two lists by now, in which reuse may have moved them (surface 1.3)."""
    self.impl.sync_transfer_manager_with_buffer_manager()
    with request_context(self.is_draft, scheduled_batch):
        add_one_by_one(self, scheduled_batch)
        scheduled_batch.reset_context_requests()
        grow_generations(self, scheduled_batch)
        self.impl.refresh_blocks()
    if self.kv_connector_manager is not None:
        self.kv_connector_manager.build_scheduler_output(scheduled_batch, self)


def add_as_a_batch(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    """Everything is claimed before anything is allocated; the token counts may still differ from the estimate."""
    first = [request for request in scheduled_batch.context_requests if request.is_first_context_chunk]
    added = [request for request in first if self._kv_connector_should_add_sequence(request)]
    infos = [(request.py_request_id, request.prompt_len, request.sampling_config.beam_width) for request in added]
    if added:
        add_batch = self.impl.admit_sequences if MANGLED else self.impl.add_sequence_batch
        add_batch(infos, added)
    for request in added:
        grow_context(self, request)


def prepare_resources_c(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    self.impl.sync_transfer_manager_with_buffer_manager()
    with request_context(self.is_draft, scheduled_batch):
        add_as_a_batch(self, scheduled_batch)
        scheduled_batch.reset_context_requests()
        grow_generations(self, scheduled_batch)
        self.impl.refresh_blocks()
    if self.kv_connector_manager is not None:
        self.kv_connector_manager.build_scheduler_output(scheduled_batch, self)


def prepare_resources_d(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    """The connector hears of the batch later, from `report_batch_to_connector`, when it has been trimmed."""
    self.impl.sync_transfer_manager_with_buffer_manager()
    with request_context(self.is_draft, scheduled_batch):
        add_as_a_batch(self, scheduled_batch)
        grow_generations(self, scheduled_batch)
        self.impl.refresh_blocks()
        scheduled_batch.reset_context_requests()


def report_batch_to_connector(self: KVCacheManagerCommon, scheduled_batch: Any) -> None:
    if self.kv_connector_manager is not None:
        self.kv_connector_manager.build_scheduler_output(scheduled_batch, self)
