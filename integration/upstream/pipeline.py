"""The pipeline loop: two ranks, each with upstream's executor, managers and a late device in a process of its own.

The first schedules where the era does so, the last samples, and its tokens come back over the line when its own device
has made them. What the layers hand on lies on the devices and decides nothing here, so it is not modelled.
"""

import multiprocessing
import queue
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from integration.upstream.arrivals import Arrival, Queue
from integration.upstream.contents import Step
from integration.upstream.engine import FIRST_GENERATED, Batch, Engine, Sampler
from integration.upstream.fallbacks import NotAmongExcerpts
from integration.upstream.parts import RequestQueueItem
from integration.upstream.server import Outcome, Server
from integration.upstream.wire import RANKS, Rank, Wire

REQUESTS = "requests"
JOIN_S = 10
LOOP = "_executor_loop_pp"


class Carried:
    """The engine returns this of a batch: the loop copies each output before it samples on a stream of its own."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def clone(self) -> "Carried":
        return self


class RankEngine(Engine):
    """Ranks handle batches in the order in which they launched them."""

    runtime_draft_len = 0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.under_way: deque[Batch] = deque()
        self.early: list[int] = []  # requests that went on before the token that they go on from had come

    def forward(self, scheduled: Any, _resources: Any, *_: Any, **__: Any) -> dict[str, Any]:
        outputs = super().forward(scheduled, _resources)
        self.under_way.append(outputs["batch"])
        carried = Carried(outputs["batch"])
        return {"logits": carried, "batch": carried}

    def _generation_step(self, request: Any) -> Step:
        """No token stays on the device for the next step here, as it does in the overlap loop."""
        step = super()._generation_step(request)
        if request.get_num_tokens(0) < step.end:
            self.early.append(request.py_request_id)
        return step


class State:
    """A batch leaves this for the later stages. `host` is the last rank's, and others receive it."""

    def __init__(self, **given: Any) -> None:
        self.scheduled_requests = self.requests = self.device = self.host = None
        vars(self).update(given)


class RankSampler(Sampler):
    """Samples on the last rank; on each, gives the tokens that it has, or was sent, to the requests."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dropped: list[int] = []  # requests whose token came when the loop no longer counted them among the sampled

    def sample_async(self, scheduled: Any, outputs: dict[str, Any], prefix: Any = None) -> Any:
        state = super().sample_async(scheduled, {"batch": outputs["batch"].batch}, prefix)
        state.requests = state.sampled
        state.host = [(each.py_request_id, FIRST_GENERATED + each.get_num_tokens(0)) for each in state.sampled]
        return state

    def finish(self, state: Any) -> None:
        state.sampler_event.synchronize()
        engine: Any = self.engine
        engine.ran(engine.under_way.popleft())

    def update_requests(self, state: Any, _resources: Any = None) -> None:
        self.finish(state)
        batch = state.requests if state.scheduled_requests is None else state.scheduled_requests.all_requests()
        requests = {each.py_request_id: each for each in batch}
        for request_id, token in state.host:
            request = requests.get(request_id)
            if request is None:
                self.dropped.append(request_id)
                continue
            if request.state == self._states.GENERATION_COMPLETE:
                continue
            request.add_new_token(token, 0)
            request.py_decoding_iter += 1
            if request.get_num_tokens(0) - request.py_prompt_len >= request.py_max_new_tokens:
                request.finish_by(self.finish_reason, 0)


class FirstQueue(Queue):
    """Requests of clients reach the first rank, which sends them on."""

    def __init__(self, server: Server, rank: Rank, arrivals: list[Arrival], cancels: dict[int, list[int]]) -> None:
        super().__init__(server, arrivals, cancels)
        self._rank = rank
        self._arrivals = {each.id: each for each in arrivals}

    def get_from_request_queue(self, timeout: Any) -> list[Any]:
        items = super().get_from_request_queue(timeout)
        told = [(e.id, self._arrivals.get(e.id), e.is_canceled_request, e.is_shutdown_request) for e in items]
        self._rank.wire.isend_object(told, 1, REQUESTS)
        return items


class NextQueue(Queue):
    """The first rank has sent these."""

    def __init__(self, server: Server, rank: Rank) -> None:
        super().__init__(server, [], {})
        self._rank = rank

    def get_from_request_queue(self, _: Any) -> list[Any]:
        self.server.device.hold()
        if not self.server.executor.active_requests:
            self.server.device.settle()
        items = []
        for request_id, arrival, is_canceled, is_shutdown in self._rank.wire.recv_object(0, REQUESTS):
            is_new = not is_canceled and not is_shutdown
            request = self.server.request(arrival) if is_new else None
            items.append(RequestQueueItem(request_id, request, is_shutdown, is_canceled))
        return items


class Broadcaster:
    """If the executor itself fetches, the ranks after the first learn of requests here."""

    def __init__(self, rank: Rank, source: Queue) -> None:
        self._rank, self._source = rank, source

    def broadcast(self, items: list[Any]) -> tuple[list[Any], None]:
        return items if self._rank.is_first else self._source.get_from_request_queue(None), None


class RankServer(Server):
    engine_class = RankEngine

    def __init__(self, rank: Rank, *args: Any) -> None:
        self.rank = rank
        super().__init__(*args)

    def _dist(self) -> Any:
        return self.rank.dist()

    def _sampler(self, states: Any) -> Sampler:
        sampler: Any = super()._sampler(states)
        return RankSampler(self.engine, State, sampler._event, states)

    def _executor(self) -> Any:
        executor = super()._executor()
        if not hasattr(type(executor), LOOP):
            raise NotAmongExcerpts(LOOP)
        if "__init__" in self.tree.lacking["PyExecutor"]:
            _complete(executor)
        executor.gather_all_responses = True  # each rank keeps what it would answer; upstream has this switch
        return executor

    def _queue(self, arrivals: list[Arrival], cancels: dict[int, list[int]]) -> Queue:
        first = self.rank.is_first
        source = FirstQueue(self, self.rank, arrivals, cancels) if first else NextQueue(self, self.rank)
        self.executor.request_broadcaster = Broadcaster(self.rank, source)
        return source

    def _look(self, outcome: Outcome) -> None:
        super()._look(outcome)
        engine: Any = self.engine
        outcome.remarks += [f"request {each} goes on before its last token has come" for each in engine.early]
        outcome.remarks += [f"a token of request {each} is dropped" for each in self.executor.sampler.dropped]


def _complete(executor: Any) -> None:
    """Sets what a constructor sets for the loop where no excerpt holds one. Tokens are sent by the loop's own thread,
    which is one of the two ways that upstream offers."""
    ranks = executor.dist.pp_size
    executor.num_micro_batches = ranks
    executor.micro_batches, executor.send_handles = [None] * ranks, [None] * ranks
    executor.send_expected_batch_num_handles = [None] * ranks
    executor.pp_async_broadcast_sample_state, executor.pp_multi_stream_sample = False, True
    executor.executed_batch_response_queue = queue.Queue()
    executor.unhandled_batch_counter = 0
    executor.sample_stream, executor.finish_sample_event = torch.cuda.Stream(), torch.cuda.Event()
    executor._pp_rebalance_drain_iters, executor._pending_recompute_pause_ids = None, set()
    executor.event_loop = getattr(executor, LOOP)


Run = Callable[..., Any]


def run_ranks(server: type[RankServer], run: Run, *what: Any) -> Any:
    """One arm on both ranks; the first one's result, with what went wrong on the other."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    answers, answer = context.Pipe(duplex=False)

    def last() -> None:
        mine.close()
        answers.close()
        try:
            answer.send(asdict(run(*what, partial(server, Rank(RANKS - 1, Wire(theirs))))))
        except BaseException:
            answer.send({"result": "wrong", "remark": traceback.format_exc()[-400:]})
        finally:
            theirs.close()

    other = context.Process(target=last)
    other.start()
    theirs.close()
    answer.close()
    result = run(*what, partial(server, Rank(0, Wire(mine))))
    mine.close()
    try:
        of_other = answers.recv()
    except EOFError:
        of_other = {"result": "wrong", "remark": "it ended without a word"}
    other.join(JOIN_S)
    return _merged(result, of_other)


def _merged(result: Any, other: dict[str, Any]) -> Any:
    if result.result == "not-run" or other["result"] == "right":
        return result
    result.result = other["result"]
    result.remark = f"{result.remark}; last rank: {other['remark']}".removeprefix("; ")
    return result
