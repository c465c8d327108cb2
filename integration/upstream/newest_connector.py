"""Upstream's newest connector manager that is stored (era N) in its newest loops, over its newest V2 manager.

A connector that has something of most prompts promises it while they are scheduled, or answers when it is asked about
those in the batch. Its loads are written when they are over, into the pages that upstream gave them, whoever has those
by then.
"""

import __future__

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from integration.upstream import newest_loops
from tests.standin.serving import PYEXECUTOR
from tests.torture.v2_attack import HAPPENS, Attack
from tests.torture.v2_books import OurLevels
from tests.torture.v2_contents import Load

MODULE = f"{PYEXECUTOR}.connectors.kv_cache_connector"
COMPLETION = f"{PYEXECUTOR}.connectors.prefix_load_completion"
ERA = "N"
# Upstream moves no pages between the pools where there is a connector, and nothing is drafted here.
CONNECTED_HAPPENS = HAPPENS - {"adjust"} | {"load at once", "load in the background", "fail while loading"}


@dataclass(frozen=True)
class Source:
    connector: str
    completion: str

    def __bool__(self) -> bool:
        return bool(self.connector and self.completion)


def source_in(folder: Path | None) -> Source:
    return Source(
        *(newest_loops.source_in(folder, f"{name.replace('.', '/')}.py", ERA) for name in (MODULE, COMPLETION))
    )


@contextmanager
def newest_connector(source: Source) -> Iterator[None]:
    """Inside the stand-in, before an executor is made. Its module holds upstream's classes, and fixes change these."""
    module, completion = import_module(MODULE), ModuleType(COMPLETION)
    exec(compile(source.completion, COMPLETION, "exec"), vars(completion))
    request = import_module(f"{PYEXECUTOR}.llm_request")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, {COMPLETION: completion}))
        stack.enter_context(mock.patch.object(request, "get_draft_token_length", _draft_length, create=True))
        stack.enter_context(mock.patch.dict(vars(module)))
        flags = __future__.annotations.compiler_flag
        exec(compile(source.connector, MODULE, "exec", flags), vars(module))
        vars(module)["logger"] = logging.getLogger("tensorrt_llm")
        yield


def _draft_length(request: Any) -> int:
    return len(request.py_draft_tokens)


def no_host_tier(size: int, pages: int, _host_pages: int) -> OurLevels:
    """Upstream refuses one where there is a connector."""
    return OurLevels(size, pages, 0)


def parts_of_blocks(size: int, pages: int, _host_pages: int) -> OurLevels:
    """A match may end inside a block, as it does upstream by default."""
    return OurLevels(size, pages, 0, shares_parts=True)


@dataclass
class Running:
    key: int  # of its reservation, or its request
    load: Load
    polls: int  # of the worker, until it is over; 0: with the batch


@dataclass
class Side:
    """What both sides of the connector know. The scheduler's promises, and the worker's loads."""

    attack: "ConnectedAttack"
    promised: dict[int, tuple[int, int]] = field(default_factory=dict)  # what of it has not been let go of
    offered: dict[int, tuple[int, bool]] = field(default_factory=dict)  # from where, and whether in the background
    begun: list[Running] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    heard: list[tuple[Any, ...]] = field(default_factory=list)  # what upstream has said, in its order

    def let_go(self, key: int, begin: int, end: int) -> None:
        """A range at either end of what is promised, and each once."""
        first, last = self.promised.pop(key)
        assert first <= begin < end <= last and (begin == first or end == last), f"{begin}-{end} of {first}-{last}"
        if (begin, end) != (first, last):
            self.promised[key] = (end, last) if begin == first else (first, begin)

    def accept(self, key: int, pages: list[list[int]], begin: int, tokens: list[int], *, in_background: bool) -> None:
        names: list[object] = []
        for token in tokens:
            names.append(hash((names[-1] if names else None, token)))
        polls = self.attack.random.randint(2, 8) if in_background else 0
        self.attack.happened("load")
        self.attack.happened("load in the background" if in_background else "load at once")
        self.begun.append(Running(key, Load(pages, begin, len(tokens), names), polls))

    def start(self, stream: Any) -> None:
        """What comes with the batch lies before it in the stream."""
        del stream
        for each in self.begun:
            if each.polls:
                self.running.append(each)
            else:
                self.write(each)
                self.finished.append(each.key)
        self.begun = []

    def poll(self) -> list[int]:
        for each in self.running:
            each.polls -= 1
        over = [each for each in self.running if not each.polls]
        self.running = [each for each in self.running if each.polls]
        for each in over:
            self.write(each)
        found, self.finished = self.finished + [each.key for each in over], []
        return found

    def write(self, each: Running) -> None:
        self.attack.contents.note(*self.attack.manager.impl.levels.take_moves(), each.load)


def connect(attack: "ConnectedAttack", kind: type[Side] = Side) -> None:
    """Before its loop runs."""
    module, side = import_module(MODULE), kind(attack)
    scheduler, worker = _scheduler(module, side), _worker(module, side)
    sides = (_answering(scheduler), worker) if attack.answers else (_reserving(scheduler), _reserved_worker(worker))
    connector = module.KvCacheConnectorManager(sides[1](), sides[0]())
    connector.configure_prefix_reservations(enabled=True)
    assert connector.prefix_reservations_enabled != attack.answers
    assert not attack.manager.impl.levels.has_host, "upstream refuses such a server"
    attack.executor.kv_connector_manager = attack.manager.kv_connector_manager = connector
    attack.side, attack.connector = side, connector


def _scheduler(module: ModuleType, side: Side) -> Any:
    class Scheduler(module.KvCacheConnectorScheduler):  # type: ignore[misc,name-defined]  # made in a test's process
        def __init__(self) -> None:
            """No arguments of a server."""
            self.side = side

        def update_state_after_alloc_by_layer_group(self, request: Any, block_ids_by_layer_group: Any) -> None:
            side.heard.append(("allocated", request.request_id, block_ids_by_layer_group))

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            side.heard.append(("batch", scheduler_output))
            return list(scheduler_output.prefix_loads)

        def request_finished_by_layer_group(self, request: Any, cache_block_ids_by_layer_group: Any) -> bool:
            side.heard.append(("finished", request.request_id, cache_block_ids_by_layer_group))
            return False

        def request_reset(self, request: Any) -> None:
            side.heard.append(("reset", request.request_id))

    return Scheduler


def _reserving(base: Any) -> Any:
    class Reserving(base):  # type: ignore[misc]
        def reserve_prefix(self, request: Any, num_computed_tokens: int, reservation_id: int) -> tuple[int, bool]:
            self.side.heard.append(("reserve", request.request_id, num_computed_tokens, reservation_id))
            length, in_background = self.side.attack.offer(request, num_computed_tokens)
            if length:
                self.side.promised[reservation_id] = num_computed_tokens, num_computed_tokens + length
            return length, in_background

        def release_prefix_reservation(self, request: Any, reservation_id: int, start: int, end: int) -> None:
            self.side.heard.append(("release", request.request_id, reservation_id, start, end))
            self.side.let_go(reservation_id, start, end)

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            raise AssertionError(f"request {request.request_id} is asked about at {num_computed_tokens}")

    return Reserving


def _answering(base: Any) -> Any:
    """It is asked once a request is in the batch, and is told then which part of its answer upstream takes."""

    class Answering(base):  # type: ignore[misc]
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            self.side.heard.append(("asked", request.request_id, num_computed_tokens))
            length, in_background = self.side.attack.offer(request, num_computed_tokens)
            if length:
                self.side.offered[request.request_id] = num_computed_tokens, in_background
            return length, in_background

        def update_state_after_alloc_by_layer_group(self, request: Any, block_ids_by_layer_group: Any) -> None:
            super().update_state_after_alloc_by_layer_group(request, block_ids_by_layer_group)
            begin, in_background = self.side.offered.pop(request.request_id, (0, False))
            taken = request.py_num_connector_matched_tokens
            if taken or in_background:  # upstream waits for a load of which it takes nothing
                tokens, pages = (
                    request.get_tokens(0)[: begin + taken],
                    [list(each) for each in block_ids_by_layer_group],
                )
                self.side.accept(request.request_id, pages, begin, tokens, in_background=in_background)

    return Answering


def _worker(module: ModuleType, side: Side) -> Any:
    class Worker(module.KvCacheConnectorWorker):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self._metadata: list[Any] | None = None

        def register_kv_cache_layout(self, layout: Any) -> None:
            """There are no bytes."""

        def start_load_kv(self, stream: Any) -> None:
            for each in self._metadata or ():
                tokens = each.tokens[: each.end]
                side.accept(
                    each.reservation_id, each.block_ids_by_layer_group, each.start, tokens, in_background=each.is_async
                )
            self._clear_connector_meta()
            side.start(stream)

        def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
            """Layers have no modules here."""

        save_kv_layer = wait_for_layer_load

        def wait_for_save(self, stream: Any) -> None:
            """Nothing is saved."""

        def get_finished(self, finished_gen_req_ids: Any, started_loading_req_ids: Any) -> tuple[list[int], list[int]]:
            del finished_gen_req_ids, started_loading_req_ids
            return [], side.poll()

    return Worker


def _reserved_worker(base: Any) -> Any:
    class Reserved(base):  # type: ignore[misc]
        def get_finished(self, finished_gen_req_ids: Any, started_loading_req_ids: Any) -> tuple[list[int], list[int]]:
            del finished_gen_req_ids, started_loading_req_ids
            return [], []

        def get_finished_prefix_loads(self) -> list[int]:
            found: list[int] = super().get_finished([], [])[1]
            return found

    return Reserved


@dataclass(eq=False)
class ConnectedAttack(Attack):
    """Upstream takes its requests out, loads, and puts them back; it ends those that are cancelled while they load."""

    answers: bool = False  # else it reserves
    side: Side = field(init=False)
    connector: Any = field(init=False)

    def offer(self, request: Any, begin: int) -> tuple[int, bool]:
        """A part of the prompt, or more than upstream can take, and whether it comes in the background."""
        length = self.random.randint(1, request.prompt_len - begin + 3) if self.random.random() < 0.5 else 0
        return length, length > 0 and self.random.random() < 0.6

    @property
    def is_loading(self) -> bool:
        return bool(self.connector.has_pending_loads())

    def _is_loading(self, request: Any) -> bool:
        return bool(request.state == type(request.state).DISAGG_GENERATION_TRANS_IN_PROGRESS)

    def _handle_canceled_requests(self) -> None:
        type(self.executor)._handle_canceled_requests(self.executor)

    def _begins_to_load(self, request: Any) -> bool:
        del request
        return False

    def _has_cache(self, request: Any, output: Any) -> bool:
        """Upstream's scheduler prepares a first chunk in each pass, and what it reserves may not come to be used."""
        if request.is_first_context_chunk and request.request_id in self.manager.kv_cache_map:
            self._unsettled.add(request.request_id)
        return super()._has_cache(request, output)

    def _covers(self, request: Any, end: int) -> bool:
        """Upstream suspends a first chunk that finds no room, or drops its cache with what is reserved for it."""
        tokens = end - request.context_current_position
        return bool(self.manager.resume_request(request) and self.manager.resize_context(request, tokens))

    def _disturb(self) -> None:
        super()._disturb()
        for request in [each for each in self.executor.active_requests if self._is_loading(each)]:
            if self._does("fail while loading", 0.1):
                self._fail(request)

    def leftovers(self) -> list[str]:
        connector = self.connector
        held = {
            "reservations": connector._prefix_reservations, "loads": connector._prefix_loads,
            "dispatched loads": connector._dispatched_prefix_load_ids, "promises": self.side.promised,
            "deferred ends": connector._deferred_load_terminations, "transfers": self.side.running + self.side.begun,
            "offers": self.side.offered, "parked": connector.pending_async_requests.loading,
        }  # fmt: skip
        return super().leftovers() + [f"{len(each)} {what}" for what, each in held.items() if each]
