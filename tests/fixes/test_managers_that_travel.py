"""A manager that was copied, pickled or deep-copied between two calls ships as without a fix, and so does its copy."""

import copyreg
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.fixes.applied import applied, standing_in
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER

ROWS, BLOCKS = 4, 8
WAYS: list[Callable[[Any], Any]] = [copy, deepcopy, lambda manager: pickle.loads(pickle.dumps(manager))]


class Filling:
    """In the place of the bound manager: the pages of a request are its number."""

    def copy_batch_block_offsets(self, host: Any, request_ids: Sequence[int], _beams: int, first: int) -> None:
        for row, request_id in enumerate(request_ids, first):
            host.numpy()[:, row] = request_id


class Mapping:
    """The same for V2's index mapper: requests have the rows of their numbers."""

    def get_copy_index(self, request_ids: Sequence[int], _contexts: int, _beams: int) -> Any:
        index = tensors().pinned(len(request_ids))
        index.numpy()[:] = request_ids
        return index


class CurrentStream:
    @property
    def cuda_stream(self) -> int:
        return int(tensors().current_stream().cuda_stream)


def tensors() -> Any:
    return import_module("tensorrt_llm._standin.tensors").tensors()


def pinned_of(contents: Any) -> Any:
    made = tensors().pinned(*contents.shape)
    made.numpy()[...] = contents
    return made


@contextmanager
def tables_that_travel() -> Iterator[None]:
    """The stand-in's host tensors are copied by their contents, as torch's are."""
    kind = type(tensors().pinned(1))
    copyreg.pickle(kind, lambda tensor: (pinned_of, (tensor.numpy().copy(),)))
    try:
        yield
    finally:
        del copyreg.dispatch_table[kind]


def bare(kind: Any, **attributes: Any) -> Any:
    """A manager with the attributes that shipping needs, all of which can be pickled."""
    made = object.__new__(kind)
    vars(made).update(attributes)
    return made


def made_v1() -> Any:
    kind = import_module(RESOURCE_MANAGER).KVCacheManager
    table = tensors().pinned(1, ROWS, 2, BLOCKS)
    return bare(kind, impl=Filling(), num_pools=1, host_kv_cache_block_offsets=table)


def made_v2() -> Any:
    kind = import_module(RESOURCE_MANAGER.replace("resource_manager", "kv_cache_manager_v2")).KVCacheManagerV2
    table = pinned_of(np.broadcast_to(np.arange(ROWS, dtype=np.int32)[:, None, None], (1, ROWS, 2, BLOCKS)))
    ones = {name: pinned_of(np.array([value], np.int32)) for name, value in (("index_scales", 1), ("kv_offset", 0))}
    return bare(kind, index_mapper=Mapping(), host_kv_cache_block_offsets=table, _stream=CurrentStream(), **ones)


CASES = [("staged-offsets-v1", made_v1), ("staged-offsets-v2", made_v2)]


@pytest.mark.parametrize("again", WAYS, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize(("fix_id", "make"), CASES, ids=["V1", "V2"])
def test_it_and_its_copy_ship_what_they_held_at_the_call(
    fix_id: str, make: Callable[[], Any], again: Callable[[Any], Any]
) -> None:
    with standing_in("C"), tables_that_travel():
        plain = pickle.dumps(make())
        with applied([fix_id]):
            manager, stream = make(), tensors().stream()
            targets = [tensors().on_device(1, ROWS, 2, BLOCKS) for _ in range(3)]

            def ship(shipping: Any, number: int, target: Any) -> None:
                with tensors().on(stream):
                    shipping.copy_batch_block_offsets(target, [number, number], 1, 0, 2)

            ship(manager, 0, targets[0])
            ship(manager, 0, targets[0])  # by now everything is known
            stream.synchronize()
            assert pickle.dumps(manager) == plain, "shipping has left something on the manager"
            other = again(manager)
            gate = tensors().close_gate(stream)
            for number, (shipping, target) in enumerate(zip((manager, other, manager), targets, strict=True), 1):
                ship(shipping, number, target)
            tensors().open_gate(gate)
            arrived = [contents(target, stream) for target in targets]
            assert arrived == [1, 2, 3]
            assert fuse.of(fix_id).faults == 0


def contents(target: Any, stream: Any) -> int:
    """The number in the first two rows of the target."""
    with tensors().on(stream):
        seen = tensors().pinned(*target.shape)
        seen.copy_(target)
    (number,) = np.unique(seen.numpy()[:, :2])
    return int(number)
