"""kvfix.offload.admission reaches the books, and what it declines is counted as such."""

from itertools import count
from typing import Literal

import pytest

from tests.core.test_tier_admission import SLOTS, hot_prompts_in_a_scan
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Link, Step
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload_section import OffloadSettings

from .ends import end
from .upstream_double import Request


class Served:
    """A scheduler side whose requests compute their prompt and end, one after another; stores take no time."""

    def __init__(self, admission: Literal["adaptive", "all"]) -> None:
        self.link = Link()
        self.link.slots = SLOTS
        settings = OffloadSettings(host_bytes=1, log_every_requests=0, admission=admission)
        self.side = OffloadScheduler(settings, 1, self.link, Switches(None))
        self.numbers = count(1)

    def serve(self, prompt: list[int]) -> int:
        """Tokens that came from the host tier. The last one of a prompt is computed in any case."""
        request = Request(next(self.numbers), [*prompt, 0])
        tokens, _ = self.side.get_num_new_matched_tokens(request, 0)
        blocks = list(range(len(prompt) + 1))
        self.side.update_state_after_alloc(request, [blocks])
        self.end(self.side.build_connector_meta(None))
        request.context_current_position = len(prompt)
        if self.side.request_finished(request, [blocks]):
            self.end(self.side.plan_late().step)
        self.side.plan_late()
        return tokens

    def end(self, step: Step) -> None:
        for job in step.transfers():
            end(self.link.ledger, job)


@pytest.mark.parametrize("admission", ["adaptive", "all"])
def test_a_scan_leaves_what_comes_back_where_the_setting_says_so(admission: Literal["adaptive", "all"]) -> None:
    declined, dropped = counters.offload_declined_blocks.value, counters.offload_dropped_blocks.value
    served = Served(admission)
    came = [served.serve(prompt) for prompt in hot_prompts_in_a_scan(1_500)]
    is_choosy = admission == "adaptive"
    assert (sum(came[750:]) > 0) is is_choosy
    assert (counters.offload_declined_blocks.value > declined) is is_choosy
    assert counters.offload_dropped_blocks.value == dropped
