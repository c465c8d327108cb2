"""The scenarios of `trtllm-kvfix selfcheck` on upstream's own Python: its constructors take what selfcheck gives them.

Bound classes, the device and the arithmetic of memory are the rig's. V2's runtime is not here, nor is the newer V1
constructor, so the eras are those whose constructor is upstream's.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from integration.upstream import cuda, late, provided  # noqa: E402  they need torch
from integration.upstream.loading import EXECUTOR  # noqa: E402
from integration.upstream.server import upstream  # noqa: E402
from trtllm_kvfix.overlay.upstream import Upstream  # noqa: E402
from trtllm_kvfix.tools.selfcheck import build, steps, verdicts  # noqa: E402
from trtllm_kvfix.tools.selfcheck.scenarios import SCENARIOS  # noqa: E402
from trtllm_kvfix.tools.selfcheck.steps import Outcome  # noqa: E402

TREES = os.environ.get("KVFIX_UPSTREAM")
TIMEOUT_S = 60
V1 = [scenario.name for scenario in SCENARIOS if scenario.name != "offsets-v2"]


class Seen:
    """What the rig has no copy for: memory that the host reads. Here it lies on the device, which is the host's."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._tensor = torch.zeros(shape, dtype=torch.int32, device="cuda")

    def copy_(self, source: Any, non_blocking: bool = False) -> None:
        self._tensor.copy_(source, non_blocking=non_blocking)

    def numpy(self) -> Any:
        return late.plain(self._tensor).numpy()


class LateGround:
    def __init__(self, device: late.LateDevice) -> None:
        self._device = device

    def stream(self) -> Any:
        return cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return cuda.stream(stream)

    def on_device(self, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=torch.int32, device="cuda")

    def pinned(self, shape: tuple[int, ...]) -> Any:
        return Seen(shape)

    def lengths(self, values: list[int]) -> Any:
        return torch.tensor(values, dtype=torch.int)

    @contextmanager
    def held(self, stream: Any) -> Iterator[None]:
        """Until somebody waits, which the scenario does behind its block."""
        del stream
        self._device.hold()
        yield


@contextmanager
def rig(root: Path, era: str) -> Iterator[late.LateDevice]:
    """Memory is not looked at: a manager has as many blocks as its configuration asks for."""
    with upstream(root, era) as (_, device, _logger):
        resources: Any = sys.modules[f"{EXECUTOR}.resource_manager"]
        bound: Any = sys.modules["tensorrt_llm.bindings.internal.batch_manager"]
        blocks: list[int] = []

        def config(count: int, reuse: bool) -> Any:
            blocks.append(count)
            return provided.KvCacheConfig(enable_block_reuse=reuse, max_attention_window=None)

        def calculate_max_num_blocks(*_: Any, **__: Any) -> tuple[int, int]:
            return blocks[-1], 0

        def sampling_config(*_: Any) -> Any:
            return bound.SamplingConfig(1)

        with (
            mock.patch.object(resources.KVCacheManager, "calculate_max_num_blocks", calculate_max_num_blocks),
            mock.patch.object(resources, "SamplingConfig", sampling_config),
            mock.patch.object(build, "imported", Upstream),
            mock.patch.object(build, "_config", config),
        ):
            yield device


def _child(send: Any, root: Path, era: str, name: str) -> None:
    outcomes: dict[str, Outcome] = {}
    with rig(root, era) as device:
        for arm in steps.ARMS:
            outcomes[f"{name}:{arm}"] = steps.take(f"{name}:{arm}", lambda: LateGround(device))
        scenario = next(each for each in SCENARIOS if each.name == name)
        state = steps.state_of(scenario.fix_id, Upstream()).value
    send.send((state, verdicts.judged(scenario, state, outcomes)))


@pytest.mark.skipif(TREES is None, reason="needs KVFIX_UPSTREAM: a folder with trees of excerpts")
@pytest.mark.parametrize("name", V1)
@pytest.mark.parametrize("era", ["S", "B2"])
def test_scenario_holds_on_upstreams_own_classes(era: str, name: str) -> None:
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, Path(str(TREES)) / "trees" / era, era, name))
    child.start()
    send.close()
    assert receive.poll(TIMEOUT_S), "nothing came"
    state, (verdict, why) = receive.recv()
    child.join()
    assert (state, verdict) == ("needed", "holds"), why
