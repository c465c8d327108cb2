"""Needs TensorRT-LLM, torch and a CUDA GPU.

What a manager ships arrives, whatever it ships next: with the fixes always, without them not where they are needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from integration.trtllm.installed import imported, make_manager
from trtllm_kvfix import native
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER, Upstream
from trtllm_kvfix.settings import Settings

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

FIRST, SECOND = [1, 2], [3, 4]
CLASSES = {"staged-offsets-v1": "KVCacheManager", "staged-offsets-v2": "KVCacheManagerV2"}


class Bench:
    """A manager whose stream can be held, and a destination for each of two batches."""

    def __init__(self, cls: Any) -> None:
        self.stream = torch.cuda.Stream()
        self.manager = make_manager(cls, self.stream)
        self.stream = getattr(self.manager, "_stream", self.stream)
        shape = (self.manager.num_pools, 4, 2, self.manager.max_blocks_per_seq)
        self.destinations = [torch.zeros(shape, dtype=torch.int32, device="cuda") for _ in range(2)]
        self.device = native.open_device(f"cuda:{torch.cuda.current_device()}")
        torch.cuda.synchronize()

    def ship(self, request_ids: list[int], which: int) -> None:
        with torch.cuda.stream(self.stream):
            at = (request_ids, 1, len(request_ids), len(request_ids))
            self.manager.copy_batch_block_offsets(self.destinations[which], *at)

    def arrived(self) -> Any:
        self.stream.synchronize()
        return self.destinations[0].cpu()

    def survives(self) -> bool:
        """Ship, then ship another batch before the first has begun; is the first what it is when left alone?"""
        self.ship(FIRST, 0)
        expected = self.arrived()
        assert expected.any(), "the first batch shipped nothing"
        self.destinations[0].zero_()
        torch.cuda.synchronize()
        gate = self.device.close_gate(self.stream.cuda_stream)
        try:
            self.ship(FIRST, 0)
            self.ship(SECOND, 1)
        finally:
            self.device.open_gate(gate)
        return bool(torch.equal(self.arrived(), expected))


@pytest.fixture(scope="module")
def up() -> Upstream:
    return imported()


@pytest.fixture(params=CLASSES)
def fix_and_class(request: pytest.FixtureRequest, up: Upstream) -> tuple[Any, Any]:
    (fix,) = [fix for fix in ALL if fix.id == request.param]
    module = up.module(RESOURCE_MANAGER) if request.param == "staged-offsets-v1" else up.v2_module
    cls = None if module is None else getattr(module, CLASSES[request.param], None)
    if cls is None:
        pytest.skip(f"this TensorRT-LLM has no {CLASSES[request.param]}")
    if not hasattr(cls, "copy_batch_block_offsets"):
        pytest.skip("in this TensorRT-LLM attention metadata owns the copy, not the manager")
    return fix, cls


@contextmanager
def applied(fix: Any, up: Upstream) -> Iterator[None]:
    registry = Registry(fixes=(fix,))
    assert registry.apply(Settings(), up, at_last=True).applied == (fix.id,)
    try:
        yield
    finally:
        assert registry.revert() == []


def test_a_later_batch_spoils_the_first_where_the_fix_is_needed(fix_and_class: tuple[Any, Any], up: Upstream) -> None:
    fix, cls = fix_and_class
    needed = fix.probe(up).state is State.NEEDED
    assert Bench(cls).survives() is not needed


def test_no_later_batch_spoils_the_first_with_the_fix(fix_and_class: tuple[Any, Any], up: Upstream) -> None:
    fix, cls = fix_and_class
    if fix.probe(up).state is not State.NEEDED:
        pytest.skip(f"{fix.id} is not needed: {fix.probe(up).reason}")
    with applied(fix, up):
        assert Bench(cls).survives()
    assert not Bench(cls).survives()
