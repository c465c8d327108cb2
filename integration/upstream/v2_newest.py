"""The newest V2 scheduler in place of spring's: it takes the pages of a request that has started, which computes again.

Its excerpts have a tree of their own, for it lies where spring's does. The constructor and what else they lack comes
from spring's, and from here: nothing is drafted, and prompts that share a beginning are not put off.
"""

from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from integration.upstream.heads import supply
from integration.upstream.v2_methods import NAMES, SCHEDULER
from integration.upstream.v2_server import V2Server

ERA = "N2"
NAME = "KVCacheV2Scheduler"
PREEMPTS = "_try_preempt_for_pages"


@dataclass
class PauseState:
    """Places of the active requests that have been paused, and the place before which to look for more."""

    frontier: int
    victim_indices: set[int] = field(default_factory=set)


class Lacking:
    """Parts of the newest scheduler for this one pool. They stand in the place of excerpts, whose constructor is not
    spring's."""

    _stalled_schedules = 0
    enable_prefix_aware_scheduling = enable_recompute_pause = True
    has_cp_helix = enable_joint_kv_cache_reuse = _prioritize_first_token_gen = False
    _joint_draft_manager = _async_transfer_manager = None
    kv_cache_manager: Any

    def _prepare_context_pair(self, request: Any) -> bool:
        return bool(self.kv_cache_manager.prepare_context(request))

    def _try_allocate_context(self, request: Any, tokens: int) -> bool:
        return bool(self.kv_cache_manager.resize_context(request, tokens))

    def _admit_unpaired_draft(self, _: Any) -> bool:
        return True

    def _pending_ctx_certainly_blocked(self, _: Any) -> bool:
        return False

    def _collect_contributed_blocks(self, *_: Any) -> None:
        return None


def stated(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("__")}


class NewestV2Server(V2Server):
    def _scheduler(self, states: Any) -> Any:
        scheduler = super()._scheduler(states)
        spring = type(scheduler)
        if not hasattr(spring, PREEMPTS):
            scheduler.__class__ = type(NAME, (spring,), stated(self._excerpts(spring)) | stated(Lacking))
        return scheduler

    def _excerpts(self, spring: type) -> type:
        module = import_module(SCHEDULER)
        path = (self.tree.root.parent / ERA / SCHEDULER.replace(".", "/")).with_suffix(".py")
        source = path.read_text(encoding="utf-8")
        names = supply(SCHEDULER, source, {
            **vars(module), "Counter": Counter, "_RecomputePauseState": PauseState,
        }) | {"__name__": SCHEDULER, "__package__": SCHEDULER.rpartition(".")[0]}  # fmt: skip
        exec(compile(source, path, "exec"), names)
        names.update(NAMES[SCHEDULER])  # what it imports from elsewhere may be doubled there
        found: type = names[NAME]
        self.tree.lacking[f"the newest {NAME}"] = sorted(
            (stated(Lacking).keys() | stated(spring).keys()) - stated(found).keys()
        )
        return found

    def _executor(self) -> Any:
        executor = super()._executor()
        schedule_request = executor.scheduler.schedule_request
        self.gave_way: list[int] = []  # requests whose pages were taken

        def noting_who_is_paused(*given: Any) -> Any:
            output = schedule_request(*given)
            self.gave_way += [each.py_request_id for each in output.recompute_paused_requests]
            return output

        executor.scheduler.schedule_request = noting_who_is_paused
        return executor
