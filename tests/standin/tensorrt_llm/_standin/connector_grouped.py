"""The two callbacks that came to be asked for each layer group: a page index means something within its group alone."""

from typing import Any

from .connector_api import KvCacheConnectorScheduler, Unimplemented
from .variant import since


class GroupedCallbacks:
    capacity_only: bool
    scheduler: Any
    finished_async_loading_requests: dict[int, Any]
    _run_on_leader: Any
    _save: Any

    if since("D"):

        def update_state_after_alloc(
            self, req: Any, block_ids: list[int], block_ids_by_layer_group: list[list[int]] | None = None
        ) -> None:
            """On the leader alone. A manager that has groups names them, and passes all three by position."""
            if self.scheduler is None or self.capacity_only:
                return
            if block_ids_by_layer_group is not None:
                self.scheduler.update_state_after_alloc_by_layer_group(req, block_ids_by_layer_group)
            else:
                self.scheduler.update_state_after_alloc(req, block_ids)

        def request_finished(
            self, req: Any, cache_block_ids: list[int], cache_block_ids_by_layer_group: list[list[int]] | None = None
        ) -> bool:
            """True: the blocks are in use until get_finished returns the request."""
            if self.capacity_only:
                return False
            self.finished_async_loading_requests.pop(req.request_id, None)
            groups = cache_block_ids_by_layer_group
            answer = self._run_on_leader(
                lambda scheduler: (
                    scheduler.request_finished_by_layer_group(req, groups)
                    if groups
                    else scheduler.request_finished(req, cache_block_ids)
                )
            )
            return bool(self._save(req, answer))

        def reject_flat_only_scheduler(self, num_layer_groups: int) -> None:
            """At the start, on every rank. A V2 manager with several groups never calls the flat callbacks."""
            missing = self._missing_grouped_callbacks()
            if num_layer_groups > 1 and missing:
                raise Unimplemented(
                    f"this cache has {num_layer_groups} layer groups, and the connector's scheduler lacks {missing}"
                )

        def _missing_grouped_callbacks(self) -> list[str]:
            names = ("update_state_after_alloc_by_layer_group", "request_finished_by_layer_group")
            missing: list[str] = self._run_on_leader(
                lambda scheduler: [
                    name for name in names if getattr(type(scheduler), name) is getattr(KvCacheConnectorScheduler, name)
                ]
            )
            return missing

    else:

        def update_state_after_alloc(self, req: Any, block_ids: list[int]) -> None:  # type: ignore[misc]
            if self.scheduler is not None:
                self.scheduler.update_state_after_alloc(req, block_ids)

        def request_finished(self, req: Any, cache_block_ids: list[int]) -> bool:  # type: ignore[misc]
            """True: the blocks are in use until get_finished returns the request."""
            self.finished_async_loading_requests.pop(req.request_id, None)
            answer = self._run_on_leader(lambda scheduler: scheduler.request_finished(req, cache_block_ids))
            return bool(self._save(req, answer))
