"""The call from inside admission: what it sees, and what runs meanwhile."""

import threading
from typing import Any

import pytest

from tests.bound import load
from tests.bound.making import WHOLE_PROMPT, WINDOW, add, make_manager, make_request, name_of

kvfix_bound = load()


def make_connector(era: Any, answer: Any) -> Any:
    class Connector(era.KvCacheConnectorManager):  # type: ignore[misc]
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
            return int(answer(request, num_computed_tokens))

    return Connector()


def test_the_connector_sees_a_new_object_of_the_base_class(era: Any) -> None:
    class Mine(era.LlmRequest):  # type: ignore[misc]
        def is_mine(self) -> bool:
            return True

    seen: list[Any] = []

    def answer(request: Any, computed: int) -> int:
        seen.append((type(request), request.request_id, hasattr(request, "py_note"), request.cache_salt_id, computed))
        return 4

    manager = make_manager(era, kv_connector_manager=make_connector(era, answer))
    request = make_request(era, 7, range(10), base=Mine, cache_salt_id=11)
    request.py_note = "kept by Python"
    add(manager, request)
    assert seen == [(era.LlmRequest, 7, False, 11, 0)]
    assert request.prepopulated_prompt_len == 4
    # Tokens that a connector only promised have not been computed.
    manager.remove_sequence(7, request, False)
    assert manager.witness_cached() == [(tuple(range(9)), 0)]


def test_dummies_are_not_asked_for(era: Any) -> None:
    manager = make_manager(era, kv_connector_manager=make_connector(era, lambda *_: 1 / 0))
    request = make_request(era, 7, range(10))
    request.is_dummy_request = True
    add(manager, request)


def test_an_exception_of_the_connector_arrives(era: Any) -> None:
    manager = make_manager(era, kv_connector_manager=make_connector(era, lambda *_: int("many")))
    with pytest.raises(ValueError, match="many"):
        add(manager, make_request(era, 7, range(10)))


def test_another_thread_runs_while_a_connector_is_asked(era: Any) -> None:
    asked, answered = threading.Event(), threading.Event()

    def answer(*_: Any) -> int:
        asked.set()
        return 0 if answered.wait(60) else -1

    manager = make_manager(era, kv_connector_manager=make_connector(era, answer))

    def other() -> None:
        asked.wait(60)
        _ = manager.tokens_per_block
        answered.set()

    thread = threading.Thread(target=other)
    thread.start()
    request = make_request(era, 7, range(10))
    add(manager, request)
    thread.join()
    assert answered.is_set() and request.prepopulated_prompt_len == 0


def test_coming_back_in_under_the_lock_is_told(era: Any) -> None:
    managers: list[Any] = []

    def answer(*_: Any) -> int:
        return len(managers[0].get_cache_block_ids(7, WINDOW)) * 0

    managers.append(make_manager(era, kv_connector_manager=make_connector(era, answer)))
    if name_of(era) in WHOLE_PROMPT:
        add(managers[0], make_request(era, 7, range(10)))
        return
    with pytest.raises(RuntimeError, match="deadlock"):
        add(managers[0], make_request(era, 7, range(10)))
