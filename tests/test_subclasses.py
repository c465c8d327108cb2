"""Classes for programs that construct their managers themselves. Upstream's own constructors are run by
integration/upstream/test_subclasses.py."""

from typing import Any

import pytest

from tests.executor.test_block_offsets_v2 import V2, Bench
from tests.fixes.applied import applied, standing_in
from trtllm_kvfix import subclasses
from trtllm_kvfix.errors import NotServed


def two_calls_while_held(kind: Any) -> tuple[bool, bool]:
    """Each of two calls on a held stream sees its own rows and copy index."""
    bench = Bench(V2)
    if kind is not None:
        assert issubclass(kind, type(bench.manager))
        bench.manager.__class__ = kind
    for request_id in range(4):
        bench.add(request_id, 9 + request_id)
    found = bench.two_calls_while_held()
    bench.server.close()
    return found


@pytest.mark.parametrize("variant", ["B", "B2", "C"])
def test_a_v2_managers_offsets_are_staged_and_upstreams_class_is_left_as_it_is(variant: str) -> None:
    with standing_in(variant):
        assert two_calls_while_held(None) != (True, True)
        assert two_calls_while_held(subclasses.KvfixKVCacheManagerV2) == (True, True)
        assert two_calls_while_held(None) != (True, True)


def test_where_the_overlay_has_done_it_nothing_is_done_twice() -> None:
    with standing_in("B"), applied(["staged-offsets-v2"]):
        made = subclasses.KvfixKVCacheManagerV2
        assert made.copy_batch_block_offsets is made.__base__.copy_batch_block_offsets
        assert two_calls_while_held(made) == (True, True)


@pytest.mark.parametrize(("variant", "reason"), [("A", "of 1.1"), ("C", "spring 2026")])
def test_a_native_manager_is_refused_where_it_has_not_been_run(variant: str, reason: str) -> None:
    with standing_in(variant), pytest.raises(NotServed, match=reason):
        subclasses.KvfixKVCacheManager  # noqa: B018  the class is made when it is asked for


def test_a_constructor_that_does_not_name_the_bound_class_is_refused() -> None:
    """The stand-in's makes it in a method of its own."""
    with standing_in("B"), pytest.raises(NotServed, match="does not name KVCacheManagerCpp"):
        subclasses.KvfixKVCacheManager  # noqa: B018


def test_names_that_are_not_there_say_which_are() -> None:
    with pytest.raises(AttributeError, match="KvfixResourceManager"):
        subclasses.KvfixManager  # noqa: B018


def test_code_sees_other_objects_under_its_global_names() -> None:
    def function(value: int, *, scale: int = 2) -> tuple[int, Any]:
        return value * scale, two_calls_while_held

    made = subclasses._rebound(function, {"two_calls_while_held": "ours"})  # type: ignore[arg-type]
    assert made(3, scale=3) == (9, "ours")
    assert made(3) == (6, "ours")
    assert function(3)[1] is two_calls_while_held
