"""Switches for stores and loads: an operator may turn either off, and both stop when no transfer succeeds, or while the
weights change."""

from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.plan import Ended
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.weights import Weights

FAILED_IN_A_ROW_MAX = 32


class Directions:
    """Both directions, `store` and `load`."""

    def __init__(self, switches: Switches, weights: Weights) -> None:
        self._switches, self._weights = switches, weights
        self._failed_in_a_row = {"store": 0, "load": 0}

    def work(self, direction: str) -> bool:
        wanted = self._switches.store if direction == "store" else self._switches.load
        return wanted and not self._weights.are_changing and self._failed_in_a_row[direction] < FAILED_IN_A_ROW_MAX

    def begin_again(self) -> None:
        self._failed_in_a_row = {"store": 0, "load": 0}
        counters.offload_given_up.put(0)

    def note_end(self, direction: str, ended: Ended) -> None:
        if not ended.error:
            self._failed_in_a_row[direction] = 0
            return
        if ended.no_room or ended.bad_slots:
            return  # says nothing of the next one
        self._failed_in_a_row[direction] += 1
        if self._failed_in_a_row[direction] == FAILED_IN_A_ROW_MAX:
            counters.offload_given_up.add()
            log.error("no more %ss: %d failed in a row, the last with: %s", direction, FAILED_IN_A_ROW_MAX, ended.error)
