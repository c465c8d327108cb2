"""Steps of the state machine about requests that a scheduler asks about, now and again, until they are admitted."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from . import strategies as draws
from .model import Request
from .pair import Pair


class WaitingRequests(RuleBasedStateMachine):
    pair: Pair

    def __init__(self) -> None:
        super().__init__()
        self.ids_used = 0
        self.waiting: list[Request] = []

    def new_id(self) -> int:
        self.ids_used += 1
        return self.ids_used

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        request = data.draw(draws.requests(self.new_id(), self.pair.model.config.max_beam_width))
        self.pair.wait(request)
        self.waiting.append(request)
        self.pair.analyze(request)

    @precondition(lambda self: self.waiting)
    @rule(index=draws.indices, chunk=draws.chunks)
    def ask_again(self, index: int, chunk: int | None) -> None:
        request = self.waiting[index % len(self.waiting)]
        self.pair.analyze(request, chunk or None)
        self.pair.blocks_to_admit(request, chunk)

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 3), chunk=draws.chunks)
    def add_waiting(self, count: int, chunk: int | None) -> None:
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        self.pair.add(batch, chunk=chunk)
