"""While another thread captures a graph as torch does by default, the driver refuses this one pinned memory, and the
capture fails with it. So the V2 fix asks torch for memory outside of captures.

That the thread's mode is relaxed meanwhile, and put back, is tested in cpp/tests/cuda/test_cuda_captures.cc.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

from tests.executor.test_block_offsets_v2 import PER_LAYER, V2, Bench
from tests.fixes.applied import applied, standing_in
from tests.fixes.test_own_copies import FIRST, Tables
from trtllm_kvfix import native
from trtllm_kvfix.fixes.staged_offsets_v2 import fix
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.upstream import DEEPSEEK_V4
from trtllm_kvfix.staging import stagers


@dataclass
class Capture:
    """Another thread's. The stand-in's tensors refuse pinned memory to a thread that has not left it."""

    taken: int = 0
    refused: int = 0
    _outside: threading.local = field(default_factory=threading.local)

    def begin(self, tensor: type, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(native.Device, "outside_captures", self._leaving(native.Device.outside_captures))
        patch.setattr(tensor, "new_empty", self._strict(getattr(tensor, "new_empty")))  # noqa: B009  no stub has it

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def outside_captures(device: native.Device, work: Callable[[], Any]) -> Any:
            def marked() -> Any:
                self._outside.now = True
                try:
                    return work()
                finally:
                    self._outside.now = False

            return original(device, marked)

        return outside_captures

    def _strict(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def new_empty(*args: Any, **kwargs: Any) -> Any:
            if not getattr(self._outside, "now", False):
                self.refused += 1
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            self.taken += 1
            return original(*args, **kwargs)

        return new_empty


def plain() -> Bench:
    return with_requests(Bench(V2))


def per_layer() -> Bench:
    return with_requests(Bench(PER_LAYER))


def with_requests(bench: Bench) -> Bench:
    for request_id in FIRST:
        bench.add(request_id, 9)
    return bench


BUILDS = [
    ("C", plain, False),  # the first launch of a table
    *((variant, plain, True) for variant in ("B", "C")),  # more pools than a stager takes
    *((variant, made, False) for variant in ("D", "F") for made in (per_layer, Tables)),
]


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(("variant", "made", "wide"), BUILDS)
def test_a_launch_takes_pinned_memory_outside_of_captures(
    variant: str, made: Callable[[], Bench], wide: bool, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wide:
        monkeypatch.setattr(stagers, "POOLS_MAX", 1)
    if not guarded:
        monkeypatch.setattr(Capture, "_leaving", lambda _self, original: original)
    with standing_in(variant):
        if made is Tables:
            import_module(DEEPSEEK_V4)
        with applied([fix.ID]):
            bench = made()
            capture = Capture()
            capture.begin(type(bench.manager.host_kv_cache_block_offsets), monkeypatch)
            expected = bench.ship(0, FIRST)
            monkeypatch.undo()
            assert bench.arrived(0, expected), "a refusal costs a wait"
            assert (capture.taken > 0, capture.refused > 0) == (guarded, not guarded)
            assert (fuse.of(fix.ID).faults == 0) == guarded, fuse.of(fix.ID).first_error
            bench.server.close()


def test_what_the_work_returns_or_raises_comes_back() -> None:
    device = native.open_device("cpu")
    assert device.outside_captures(lambda: [1]) == [1]
    with pytest.raises(ZeroDivisionError):
        device.outside_captures(lambda: 1 // 0)
