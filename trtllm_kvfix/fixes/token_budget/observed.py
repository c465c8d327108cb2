"""Batches as upstream made them, and how many of them exceed max_num_tokens once reuse is known.

Each rank observes by itself: no rank changes anything, so ranks need not agree.
"""

from trtllm_kvfix.fixes.token_budget.mechanism import BudgetKeeper, Preparation
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.vote import TAG_BUDGET, Mapping, Voting, Votings


class _Alone(Voting):
    """A vote of one: there are no other ranks to ask or to inform."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__(fuse, TAG_BUDGET, find=lambda: None)

    def may_change(self, mapping: Mapping | None) -> bool:  # noqa: ARG002  nothing is changed
        return True


class ObservedBudget(BudgetKeeper):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__(
            fuse, Votings(lambda: _Alone(fuse)), lambda _: True
        )  # no prompt is cut short, so none is offered too early

    def _settle(self, current: Preparation) -> None:
        if current.settled:
            return
        current.settled = True
        try:
            if current.plan():
                counters.observed.add(1, self._fuse.fix_id)
        except Exception as error:
            self._fuse.fault(error)
            self._votings.of(current.resource_manager).abstain()
        else:
            self._fuse.in_a_row = 0
