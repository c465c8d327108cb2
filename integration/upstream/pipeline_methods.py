"""The executor's methods that its pipeline loop needs and no excerpt holds: as few as will do."""

from typing import Any

SCHEDULE = "schedule"


SENDS_RESULTS = "_ring_broadcast_sample_state"  # of executors that send what the last rank has put in a result, too


class PyResult:
    """Scenarios ask for no logits and the like, so ranks have no result to send but tokens."""

    def get_diff(self) -> None:
        pass

    def apply_diff(self, _: None) -> None:
        pass

    def reset_diff(self) -> None:
        pass


class PipelineExecutor:
    """The first rank schedules, and the others run what it has sent."""

    def _pp_schedule_and_propagate(self: Any, microbatch_id: int) -> tuple[Any, list[Any], int, bool]:
        del microbatch_id
        dist = self.dist
        if dist.is_first_pp_rank:
            batch, arriving, fitting = self._schedule()
            found = self.sent_schedule_class.from_scheduler_result(batch, arriving, fitting)
        else:
            found = dist.recv_object(dist.prev_pp_rank, SCHEDULE)
            batch, arriving, fitting = found.to_scheduler_result(self.active_requests)
        if not dist.is_last_pp_rank:
            dist.isend_object(found, dist.next_pp_rank, SCHEDULE)
        return batch, arriving, fitting, False
