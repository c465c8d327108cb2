"""Upstream's newest V2 scheduler (era N2) in its newest loops, in the place of the attack's own.

It takes pages from others as upstream does: those of a request that has started go at once, where no tier below the
device can take them.
"""

import ast
import enum
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Optional
from unittest import mock

from integration.upstream import newest_loops
from integration.upstream.newest_connector import CONNECTED_HAPPENS
from integration.upstream.v2_methods import rewind_context_after_cache_drop
from integration.upstream.v2_pages import first_new_block
from tests.standin.serving import PYEXECUTOR
from tests.torture.v2_attack import BATCH, Attack
from tests.torture.v2_books import Books

PACKAGE = f"{PYEXECUTOR}.scheduler"
PATH = f"{PACKAGE.replace('.', '/')}/scheduler_v2.py"
ERA = "N2"
NAME = "KVCacheV2Scheduler"
NEEDED = ("__init__", "_schedule_loop", "_try_schedule_context_chunked", "_try_recompute_pause_for_gen")
TOKENS = 16  # of a step; prompts are longer
SCHEDULED_HAPPENS = CONNECTED_HAPPENS - {"fail while admitted"}


def source_in(folder: Path | None) -> str:
    """Nothing where the excerpts lack what makes it a scheduler of its own."""
    found = newest_loops.source_in(folder, PATH, ERA)
    return found if all(f"def {name}(" in found for name in NEEDED) else ""


class Policy(enum.Enum):
    MAX_UTILIZATION = 0
    FIRST_COME_FIRST_SERVED = 1
    FORCE_CHUNK = 2


class Lacking:
    """What no excerpt holds, for prompts of text."""

    def _align_chunk_to_mm_block(self, _request: Any, chunk: int, *_: Any) -> int:
        return chunk


@contextmanager
def newest_scheduler(source: str) -> Iterator[type]:
    """Inside the stand-in, with upstream's manager. Gives the class."""
    manager = import_module(f"{PYEXECUTOR}.kv_cache.kv_cache_manager_v2").KVCacheManagerV2
    request = import_module(f"{PYEXECUTOR}.llm_request")
    added: list[tuple[Any, dict[str, Any]]] = [
        (request.LlmRequest, REQUESTS),
        (manager, MANAGER | {"preempt_request": manager.free_resources}),
        (Books, {"probe_first_new_block_key": _first_new_block}),
    ]
    with ExitStack() as stack:
        for owner, names in added:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(owner, name, value, create=True))
        module = _globals(request)
        classes: list[ast.stmt] = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]
        exec(compile(ast.Module(classes, []), PATH, "exec"), module)
        yield module[NAME]


def _globals(request: ModuleType) -> dict[str, Any]:
    """The names that it imports. Its methods import others, from the package."""
    return {
        "__name__": f"{PACKAGE}.scheduler_v2", "__package__": PACKAGE,
        "Callable": Callable, "Counter": Counter, "Optional": Optional, "enum": enum, "os": os,
        "CapacitySchedulerPolicy": Policy, "ContextChunkingPolicy": Policy,
        "LlmRequest": request.LlmRequest, "LlmRequestState": request.LlmRequestState,
        "RequestList": list, "RequestScheduler": Lacking, "SchedulerOutput": SimpleNamespace,
        "_get_lora_task_id": lambda each: each.lora_task_id or 0,
        "drop_decoder_context_requests_waiting_for_encoder_output": lambda requests: requests,
        "get_draft_token_length": lambda each: len(each.py_draft_tokens),
        "logger": logging.getLogger("tensorrt_llm"),
        "rewind_context_after_cache_drop": rewind_context_after_cache_drop,
    }  # fmt: skip


def _first_new_block(self: Books, scope: Any, tokens: Sequence[int]) -> object:
    reused = self.levels.runtime.probe_reuse(scope.salt, tokens)
    return first_new_block(scope, tokens, reused, self.tokens_per_block)


MANAGER = {"enable_joint_kv_cache_reuse": False}
REQUESTS = {
    "is_generation_to_complete_state": property(lambda self: self.state.name == "GENERATION_TO_COMPLETE"),
    "state_value": property(lambda self: int(self.state.value)),
}


@dataclass
class Scheduling:
    """The executor's scheduler. What upstream suspends keeps its place; who is computed again leaves it.

    In a full pool, prompts that have loaded and an answer can wait for each other: none of the prompts has started, so
    nobody takes its blocks, and the answer is suspended in each pass, so nobody takes its. Upstream's own look for such
    a deadlock counts that as progress, and its loops handle no cancelled request while no batch runs. So the attack
    ends them.
    """

    attack: Attack
    theirs: Any
    patience: int | None = 100  # passes in a row in which nobody goes on
    stalled: int = 0

    def schedule_request(self, active: list[Any], inflight: Any) -> Any:
        found = self.theirs.schedule_request(active, inflight or set())
        self._note_progress(active, found)
        for what, requests in [
            ("suspend for room", found.paused_requests),
            ("compute again", found.recompute_paused_requests),
            ("reuse", [each for each in found.context_requests if self._reuses(each)]),
        ]:
            for _ in requests:
                self.attack.happened(what)
        return self.attack.output(
            context_requests=found.context_requests, generation_requests=found.generation_requests,
            paused_requests=found.recompute_paused_requests, num_fitting_requests=found.num_fitting_requests,
        )  # fmt: skip

    def _note_progress(self, active: list[Any], found: Any) -> None:
        goes_on = found.context_requests or found.generation_requests or found.recompute_paused_requests
        self.stalled = 0 if goes_on or self.attack.is_loading else self.stalled + 1
        if self.stalled == self.patience:
            self.stalled = 0
            for each in list(active):
                self.attack.happened("end a deadlock")
                self.attack._fail(each)

    def _reuses(self, request: Any) -> bool:
        cache = self.attack.manager.kv_cache_map[request.request_id]
        return bool(request.is_first_context_chunk and cache.num_committed_tokens)


def let_it_schedule(attack: Attack, kind: Any, **given: Any) -> None:
    """Before its loop runs."""
    manager = attack.manager
    manager.can_evict = manager.has_cache_tier_below_gpu = manager.impl.levels.has_host
    chunks = (Policy.FIRST_COME_FIRST_SERVED, manager.tokens_per_block)
    theirs = kind(BATCH, TOKENS, manager, Policy.MAX_UTILIZATION, chunks)
    attack.executor.scheduler = Scheduling(attack, theirs, **given)
