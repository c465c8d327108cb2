"""The bound capacity scheduler of the tests against upstream's own in Python, which upstream wrote to decide the same.

Its module is compiled as it is, out of the excerpts that KVFIX_UPSTREAM names; what it imports is given here.
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from integration.upstream.assemble import VARIABLE, module_text, slices, sources
from tests.bound import load
from tests.bound.making import add, make_manager, make_request

PYEXECUTOR = "tensorrt_llm._torch.pyexecutor"
NAME = f"{PYEXECUTOR}.scheduler.unified_scheduler"
STATES = 400
kvfix_bound = load()
era: Any = kvfix_bound.B2  # binds what upstream's Python asks of a request and of the manager


def source_text() -> str:
    folder = os.environ.get(VARIABLE)
    found = [each for each in sources(Path(folder)) if each.path == f"{NAME.replace('.', '/')}.py"] if folder else []
    if not found:
        pytest.skip(f"{VARIABLE} names no excerpts of {NAME}")
    return module_text(slices(found[0]))


@contextmanager
def given(modules: dict[str, dict[str, Any]]) -> Iterator[None]:
    made = {name: ModuleType(name) for name in modules}
    for name, values in modules.items():
        vars(made[name]).update(values)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


Policy = Enum("Policy", ["MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH"])


@pytest.fixture(scope="module")
def upstreams() -> Any:
    names = ("RequestList", "SchedulerOutput", "ScheduleStepConfig", "compute_fcfs_context_chunk_size")
    parts = dict.fromkeys((*names, "sort_requests_by_lora"))
    modules: dict[str, dict[str, Any]] = {
        "strenum": {"StrEnum": str},
        "tensorrt_llm": {},
        "tensorrt_llm.llmapi": {},
        "tensorrt_llm.llmapi.llm_args": {"CapacitySchedulerPolicy": Policy},
        "tensorrt_llm.logger": {"logger": SimpleNamespace(debug=lambda _: None)},
        f"{PYEXECUTOR}.llm_request": {"LlmRequest": object, "LlmRequestState": era.LlmRequestState},
        f"{PYEXECUTOR}.scheduler.scheduler": parts | {"RequestList": list, "RequestScheduler": object},
        "tensorrt_llm._torch": {},
        PYEXECUTOR: {"__path__": []},
        f"{PYEXECUTOR}.scheduler": {"__path__": []},
        NAME: {"__package__": f"{PYEXECUTOR}.scheduler"},
    }
    text = source_text()
    with given(modules):
        module = sys.modules[NAME]
        exec(compile(text, NAME, "exec"), vars(module))
        yield module


class Asked:
    """The bound manager as upstream's Python speaks to it. Keys compare by what they hold, as they do in C++."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def find_new_context_block(self, unique_tokens: Any, request: Any) -> Any:
        key = self._manager.find_new_context_block(unique_tokens, request)
        return None if key is None else tuple(token.token_id for token in key.unique_tokens)

    def get_remaining_blocks_to_completion_batch(self, requests: list[Any], window: int) -> list[int]:
        return [self._manager.get_remaining_blocks_to_completion(each, window) for each in requests]


class Request(era.LlmRequest):  # type: ignore[misc]
    @property
    def state_value(self) -> int:
        return int(self.state.value)

    @property
    def is_encoder_init_state(self) -> bool:
        return False


def some_requests(chance: random.Random, manager: Any) -> list[Any]:
    """Requests in every state that a server has: some hold blocks, some of these load, and some are back."""
    states = era.LlmRequestState
    found = []
    for number in range(1, chance.randrange(2, 9)):
        begin = 100 * chance.randrange(4)  # some share their prompts, or the beginning
        tokens = range(begin, begin + chance.randrange(4, 17))
        request = make_request(era, number, tokens, base=Request, max_new_tokens=chance.randrange(1, 17))
        free = manager.get_kv_cache_stats().free_num_blocks
        if chance.random() < 0.6 and free * manager.tokens_per_block > request.prompt_len + 4:
            add(manager, request)
            enter(chance, request)
        elif chance.random() < 0.1:
            request.state = states.DISAGG_GENERATION_INIT
        found.append(request)
    chance.shuffle(found)
    return found


def enter(chance: random.Random, request: Any) -> None:
    states = era.LlmRequestState
    match chance.randrange(5):
        case 0:
            request.state = states.DISAGG_GENERATION_TRANS_IN_PROGRESS
        case 1:  # back from a load, or put off: in its first chunk
            pass
        case 2:
            request.context_current_position = min(request.prompt_len - 1, request.context_current_position + 4)
        case 3:
            request.state = chance.choice([states.GENERATION_COMPLETE, states.DISAGG_CONTEXT_TRANS_IN_PROGRESS])
        case _:
            request.state = states.GENERATION_IN_PROGRESS


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "STATIC_BATCH"])
def test_both_choose_the_same(policy: str, upstreams: Any) -> None:
    chance = random.Random(7)
    fitting_at_all = refused = 0
    for _ in range(STATES):
        manager = make_manager(era, blocks=chance.randrange(6, 24))
        active = some_requests(chance, manager)
        at_most = chance.randrange(1, 9)
        bound = era.CapacityScheduler(at_most, getattr(era.CapacitySchedulerPolicy, policy), True)
        own = upstreams.PyCapacityScheduler(
            at_most, Asked(manager), scheduler_policy=Policy[policy],
            no_schedule_until_state=era.LlmRequestState.CONTEXT_INIT,
            no_schedule_after_state=era.LlmRequestState.GENERATION_COMPLETE,
        )  # fmt: skip
        theirs, ours = own.schedule_request(active), bound(active, manager)
        described = [(each.request_id, each.state.name, each.prompt_len, each.max_new_tokens) for each in active]
        for index in range(3):
            assert [r.request_id for r in theirs[index]] == [r.request_id for r in ours[index]], described
        fitting_at_all += len(theirs[0])
        refused += len(active) - len(theirs[0])
    assert fitting_at_all > STATES / 4 and refused > STATES / 4
