"""The store's client makes sense of what Mooncake's answers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.offload.remote import porter_process as module
from trtllm_kvfix.offload.remote.messages import Outcome
from trtllm_kvfix.offload.remote.porter_process import (
    LEASE_OVER,
    NO_SPACE,
    NOT_FOUND,
    OTHER_SIZE,
    MooncakeStore,
    Store,
    StoreError,
)

NAMES = ["a", "b", "c"]
ADDRESSES, NBYTES = [16, 32, 48], 10

Call = Callable[[Store], Any]
CALLS: dict[str, Call] = {
    "batch_put_from": lambda store: store.put(NAMES, ADDRESSES, NBYTES),
    "batch_get_into": lambda store: store.get(NAMES, ADDRESSES, NBYTES),
    "batch_is_exist": lambda store: store.exist(NAMES),
}


def store_that_answers(monkeypatch: pytest.MonkeyPatch, **codes: Any) -> Store:
    def answering(name: str) -> Callable[..., Any]:
        return lambda *_: codes.get(name, 0)

    client = SimpleNamespace(**{name: answering(name) for name in ("setup", "register_buffer", *CALLS)})
    place = SimpleNamespace(MooncakeDistributedStore=lambda: client)
    monkeypatch.setattr(module, "import_module", lambda _: place)
    return MooncakeStore(master="here:1", protocol="tcp", host="here")


def test_codes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_that_answers(
        monkeypatch,
        batch_put_from=[0, NO_SPACE, -1],
        batch_get_into=[10, NOT_FOUND, -1],
        batch_is_exist=[1, 0, 1],
    )
    assert store.put(NAMES, ADDRESSES, NBYTES) == [Outcome.WHOLE, Outcome.FULL, Outcome.FAILED]
    assert store.get(NAMES, ADDRESSES, NBYTES) == [Outcome.WHOLE, Outcome.MISSING, Outcome.FAILED]
    assert store.exist(NAMES) == [True, False, True]


def test_what_came_after_its_lease_is_for_the_seal_to_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_that_answers(monkeypatch, batch_get_into=[LEASE_OVER] * 3)
    assert store.get(NAMES, ADDRESSES, NBYTES) == [Outcome.LATE] * 3


def test_an_object_of_another_size_is_bad_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller one has come, and of a larger one nothing was moved."""
    store = store_that_answers(monkeypatch, batch_get_into=[NBYTES - 1, OTHER_SIZE, -1])
    assert store.get(NAMES, ADDRESSES, NBYTES) == [Outcome.BAD, Outcome.BAD, Outcome.FAILED]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("codes", [[], [0, 0], [1, 1, 1, 1]])
def test_an_answer_for_other_objects_than_were_asked_for_is_none(
    call: str, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((ValueError, StoreError)):
        CALLS[call](store_that_answers(monkeypatch, **{call: codes}))


@pytest.mark.parametrize("call", ["setup", "register_buffer"])
def test_a_client_that_refuses_is_said_with_its_code(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="code -5"):
        store_that_answers(monkeypatch, **{call: -5}).register(1, 2)
