"""DMA or kernel: what may be asked for, what is refused and why, and what the measurement touches."""

import logging
from typing import Any

import numpy as np
import pytest

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, HostPool, fail_operation, open_device
from trtllm_kvfix.offload import transfers
from trtllm_kvfix.offload.transfers import BlockLayout, DevicePool, Ways, choose_ways, faster, make_lane, measure
from trtllm_kvfix.offload_section import OffloadSettings

from .conftest import MakeBench, serve_alone
from .faults import transfers_of
from .upstream_double import Request

BLOCKS, BLOCK_BYTES = 16, 4096


class Without:
    """A device that lacks something."""

    def __init__(self, device: Device, **differences: Any) -> None:
        self._device = device
        self._differences = differences

    def __getattr__(self, name: str) -> Any:
        return self._differences[name] if name in self._differences else getattr(self._device, name)


@pytest.fixture
def device() -> Device:
    return open_device("cpu", 1)


@pytest.fixture
def real(device: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device, as if it had a speed to measure."""
    monkeypatch.setattr(transfers, "make_lane", lambda _, *arguments: make_lane(device, *arguments))
    return Without(device, simulated=False)


@pytest.fixture
def pool(device: Device) -> HostPool:
    return HostPool(device, host_bytes=BLOCKS * BLOCK_BYTES, block_bytes=BLOCK_BYTES)


def layout_of(*block_bytes: int, stride: int | None = None) -> BlockLayout:
    return BlockLayout(
        [DevicePool(1 << 20, 8, size, "words", stride or size, number) for number, size in enumerate(block_bytes)]
    )


LAYOUT = layout_of(BLOCK_BYTES)


def settings(**values: Any) -> OffloadSettings:
    return OffloadSettings(host_bytes=1 << 20, **values)


def test_dma_or_kernel_is_what_was_asked_for(device: Device, pool: HostPool) -> None:
    assert choose_ways(device, LAYOUT, pool, settings(copy_by="dma")) == Ways("dma", "dma")
    assert (counters.offload_stores_by_kernel.value, counters.offload_loads_by_kernel.value) == (0, 0)
    assert choose_ways(device, LAYOUT, pool, settings(copy_by="kernel")) == Ways("kernel", "kernel")
    assert (counters.offload_stores_by_kernel.value, counters.offload_loads_by_kernel.value) == (1, 1)


def test_more_multiprocessors_than_there_are_are_refused(device: Device, pool: HostPool) -> None:
    assert choose_ways(device, LAYOUT, pool, settings(copy_by="kernel", copy_sms=16)) == Ways("kernel", "kernel")
    for way in ("auto", "kernel"):
        with pytest.raises(SettingsError, match=r"copy_sms is 17; simulated device, seed 1 has 16 multiprocessors"):
            choose_ways(device, LAYOUT, pool, settings(copy_by=way, copy_sms=17))
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        settings(copy_sms=0)


@pytest.mark.parametrize(
    ("differences", "layout", "why"),
    [
        ({"has_kernels": False}, LAYOUT, "no kernels: they are built where nvcc is found"),
        ({}, layout_of(4088, 8), "blocks of 4088 bytes, 4088 apart from 0x100000: the kernel moves 16 bytes at a time"),
        ({}, layout_of(BLOCK_BYTES, stride=4100), "4100 apart"),
    ],
)
def test_what_no_kernel_can_move_is_refused_or_goes_by_dma(
    device: Device,
    pool: HostPool,
    differences: dict[str, Any],
    layout: BlockLayout,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lacking: Any = Without(device, simulated=False, **differences)
    with pytest.raises(SettingsError, match=f"copy_by is kernel, but .*{why}.*; write auto or dma"):
        choose_ways(lacking, layout, pool, settings(copy_by="kernel"))
    with caplog.at_level(logging.INFO):
        assert choose_ways(lacking, layout, pool, settings()) == Ways("dma", "dma")
    assert why in caplog.text


def test_a_pool_that_kernels_find_elsewhere_goes_by_dma(device: Device, pool: HostPool) -> None:
    assert pool.at_same_address_on_device
    elsewhere: Any = Without(pool, at_same_address_on_device=False)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="does not see the host pool at its own address"):
        choose_ways(device, LAYOUT, elsewhere, settings(copy_by="kernel"))


def test_a_simulated_device_is_not_measured(device: Device, pool: HostPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "measure", None)
    assert choose_ways(device, LAYOUT, pool, settings()) == Ways("dma", "dma")


def test_the_kernel_must_be_clearly_faster() -> None:
    dma = {("store", "dma"): 40.0, ("load", "dma"): 40.0}
    assert faster({**dma, ("store", "kernel"): 60.0, ("load", "kernel"): 59.0}) == Ways("kernel", "dma")  # type: ignore[dict-item]
    assert faster({**dma, ("store", "kernel"): 59.0, ("load", "kernel"): 60.0}) == Ways("dma", "kernel")  # type: ignore[dict-item]


def test_both_ways_are_measured_in_both_directions(
    device: Device, real: Any, pool: HostPool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        choose_ways(real, LAYOUT, pool, settings())
    (line,) = [one for one in caplog.messages if one.startswith("blocks of")]
    assert "4.0 KiB: stores by " in line
    assert line.count("GB/s") == 1
    for layout in (LAYOUT, layout_of(1024, 3072)):
        speeds = measure(device, layout, pool, settings())
        assert set(speeds) == {(direction, way) for direction in ("store", "load") for way in ("dma", "kernel")}
        assert all(speed > 0 for speed in speeds.values())


def test_measuring_touches_nothing_but_the_pool_and_memory_of_its_own(device: Device, pool: HostPool) -> None:
    """The layout's own addresses are nobody's: a copy there would be refused."""
    blocks = device.empty((BLOCKS, BLOCK_BYTES), "uint8")
    layout = BlockLayout([DevicePool(blocks.address, BLOCKS, BLOCK_BYTES, "bytes", BLOCK_BYTES)])
    device.fill_words(blocks.address, blocks.nbytes // 4, 7, 0)
    device.synchronize(0)
    measure(device, layout, pool, settings())
    host = device.pinned((BLOCKS, BLOCK_BYTES // 4), "uint32")
    device.copy(host.address, blocks.address, blocks.nbytes, 0)
    device.synchronize(0)
    assert np.all(host.array == 7)


def test_what_cannot_be_measured_goes_by_dma(
    device: Device, real: Any, pool: HostPool, caplog: pytest.LogCaptureFixture
) -> None:
    fail_operation(device, 1)
    assert choose_ways(real, LAYOUT, pool, settings()) == Ways("dma", "dma")
    assert "could not be compared: a store by dma failed" in caplog.text


def test_traffic_by_kernel_comes_back_whole(make_bench: MakeBench) -> None:
    bench = make_bench(copy_by="kernel", verify="all")
    for number in range(1, 6):
        tokens = [number, *range(1, 24)]
        assert serve_alone(bench, Request(2 * number, list(tokens), max_new_tokens=3)) == 0
        assert serve_alone(bench, Request(2 * number + 1, list(tokens), max_new_tokens=3)) == 20
    assert bench.executor.corrupt == []
    for lane in (transfers_of(bench)._stores, transfers_of(bench)._loads):
        stats = lane.stats()
        assert stats.by_kernel == stats.submitted > 0
