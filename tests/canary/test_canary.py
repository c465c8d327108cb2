"""The canary on the simulated device: what it finds, what it costs the loop, and that its faults stay its own."""

import ctypes
import logging
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.canary.blind import blind
from trtllm_kvfix.canary import canary as module
from trtllm_kvfix.canary.canary import Canary, Pool, sentence
from trtllm_kvfix.canary.fills import Write
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import DeviceError, open_device, unplug

SIZE, SLOTS, LAYERS, LAYER_BYTES = 4, 24, 3, 64


class Server:
    """Blocks on a device, and a canary beside them. A step fills blocks, and the device is done when it returns."""

    def __init__(self, blocks_per_step: int = 2, seed: int = 1) -> None:
        self.device = open_device("cpu", seed=0)
        self.stream = self.device.create_stream()
        self.memory = self.device.empty((SLOTS * LAYERS * LAYER_BYTES,), "uint8")
        raw = (ctypes.c_uint8 * self.memory.nbytes).from_address(self.memory.address)
        self.bytes = np.ctypeslib.as_array(raw).reshape(SLOTS, LAYERS, LAYER_BYTES)
        self.bytes[:] = np.random.default_rng(0).integers(0, 256, self.bytes.shape, np.uint8)
        pool = Pool(self.memory.address, LAYERS * LAYER_BYTES, range(LAYERS))
        self.canary = Canary(self.device, self.stream, [pool], SIZE, blocks_per_step, hazards=["H1", "H8"], seed=seed)

    def fill(self, request: int, slots: list[int]) -> None:
        self.canary.admitted(request, slots, 0)
        self.step(Write(request, slots, 0, len(slots) * SIZE, len(slots) * SIZE))

    def step(self, *writes: Write) -> None:
        self.canary.step(writes)
        self.device.synchronize(self.stream)
        self.canary.read()

    def reuse(self, request: int, slots: list[int]) -> None:
        self.canary.admitted(request, slots, (len(slots) - 1) * SIZE)
        self.step()


@pytest.fixture
def server() -> Any:
    made = Server()
    yield made
    made.canary.close()


def test_one_bit_of_one_layer_of_one_block_is_found_at_reuse(server: Server) -> None:
    server.fill(1, list(range(20)))
    server.bytes[7, 1, 33] ^= 4
    server.reuse(2, [5, 6, 7, 8, 21])
    report = server.canary.report()
    (found,) = report.findings
    assert (found.kind, found.slot, found.layers, found.filler) == ("changed", 7, (1,), 1)
    assert (found.right_at, found.wrong_at) == (1, 2)
    assert found.hazards == ("H1",)
    assert "slot 7 of request 1" in sentence(found) and "H1 would do that" in sentence(found)


@pytest.mark.parametrize("blocks_per_step", [1, 2, 8])
def test_it_is_found_while_the_block_lives_within_a_round(blocks_per_step: int) -> None:
    """Two rounds at most: a round may have passed the block already."""
    server = Server(blocks_per_step)
    server.fill(1, list(range(20)))
    server.step()
    server.bytes[13, 2, 0] ^= 128
    steps = 0
    while not server.canary.report().findings:
        server.step()
        steps += 1
    assert steps <= 2 * -(-20 // blocks_per_step)
    server.canary.close()


def test_without_the_comparison_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    server = Server()
    server.fill(1, list(range(20)))
    server.bytes[:20] ^= 1
    server.reuse(2, [5, 6, 7, 8, 21])
    for _ in range(20):
        server.step()
    assert server.canary.report().counts == {} and server.canary.report().blocks_compared["live"] > 20
    server.canary.close()


def test_a_block_is_found_once_and_others_are_counted_without_a_line(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.fill(1, list(range(20)))
    server.bytes[3:6, 0, 0] ^= 1
    with caplog.at_level(logging.ERROR):
        for _ in range(40):
            server.step()
    report = server.canary.report()
    assert report.counts == {"changed": 3} and len(report.findings) == 3
    assert len([record for record in caplog.records if "canary" in record.message]) == 1


def test_a_block_that_is_written_on_purpose_gives_no_finding(server: Server) -> None:
    server.fill(1, [3, 4])
    server.canary.released(1)
    server.device.synchronize(server.stream)
    server.canary.admitted(2, [4, 3], 0)
    server.bytes[3:5] ^= 1
    server.step(Write(2, [4, 3], 0, 2 * SIZE, 2 * SIZE))
    for _ in range(4):
        server.step()
    report = server.canary.report()
    assert report.counts == {} and report.blocks_taken == 4


def test_when_one_ends_only_its_own_blocks_are_looked_at(server: Server) -> None:
    """Slots of others may have owners who are heard at the next step."""
    server.fill(1, [3, 4])
    server.fill(2, [5, 6])
    server.canary.admitted(3, [5, 6, 7], 2 * SIZE)
    server.bytes[3] ^= 1
    server.bytes[5:7] ^= 1  # by request 4
    server.canary.released(1)
    server.canary.admitted(4, [5, 6], 0)
    server.step()
    (found,) = server.canary.report().findings
    assert (found.slot, found.occasion) == (3, "freed")


def test_what_nobody_filled_is_found_when_it_is_reused(server: Server) -> None:
    server.canary.admitted(1, [3, 4], 0)
    server.step(Write(1, [3, 4], 0, 5, 5))
    server.reuse(2, [3, 4, 9])
    (found,) = server.canary.report().findings
    assert (found.kind, found.slot, found.filler, found.reader, found.hazards) == ("unfilled", 4, 1, 2, ("H8",))


def test_a_held_stream_holds_the_canary_and_not_the_loop() -> None:
    """More looks than the ring has places: they wait, without the loop."""
    server = Server(blocks_per_step=8)
    server.fill(1, list(range(20)))
    gate = server.device.close_gate(server.stream)
    for _ in range(200):
        server.canary.step([])
    taken = server.canary.report().blocks_compared
    server.device.open_gate(gate)
    server.step()
    assert sum(server.canary.report().blocks_compared.values()) > sum(taken.values())
    assert server.canary.fault is None and server.canary.report().counts == {}
    server.canary.close()


def test_a_burst_is_spread_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_LOOKS_MAX", 3)
    server = Server(1)
    server.fill(1, list(range(20)))
    assert server.canary.report().blocks_taken == 3
    for _ in range(6):
        server.step()
    assert server.canary.report().blocks_taken == 20
    server.canary.close()


def test_looks_that_come_too_late_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_LOOKS_MAX", 3)
    server = Server(1)
    server.fill(1, list(range(20)))
    server.fill(2, list(range(20)))
    assert server.canary.report().missed == 17
    server.canary.close()


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_LOOKS_MAX", 1)
    monkeypatch.setattr(module, "DUE_MAX", 8)
    server = Server(1)
    server.fill(1, list(range(20)))
    assert server.canary.report().missed == 12
    server.canary.close()


def test_too_little_memory_ends_the_canary_and_not_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DeviceError("cannot pin")

    monkeypatch.setattr(module, "ring_of", refuse)
    server = Server()
    server.fill(1, [3])
    server.canary.close()
    assert server.canary.report().state == "stood down in step 0: DeviceError: cannot pin"
    assert caplog.text.count("the canary stands down") == 1


def test_without_kernels_it_is_off_and_says_why() -> None:
    device: Any = SimpleNamespace(name="a GPU", has_kernels=False)
    canary = Canary(device, 0, [Pool(0, 192, range(3))], SIZE, 2)
    canary.step([])
    canary.close()
    assert canary.report().state == (
        "stood down in step 0: DeviceError: a GPU has no kernels: they are built where nvcc is found"
    )


def test_blocks_across_the_end_of_the_ring_are_digested_as_any_other() -> None:
    """Five looks a step do not divide the ring; each block has contents of its own."""
    server = Server(blocks_per_step=5)
    server.fill(1, list(range(20)))
    for _ in range(1000):
        server.step()
    report = server.canary.report()
    assert report.counts == {} and report.blocks_compared["live"] > 4000
    server.canary.close()


def missed(r: float) -> float:
    """As docs/canary.md says it."""
    return 1 - r + r**3 / 6 if r <= 1 else max(0, 2 - r) ** 3 / 6


def test_canary_md_shows_the_formula() -> None:
    page = (Path(__file__).parents[2] / "docs" / "canary.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\| \*r\* \| (.*) \|\n.*\n\| missed \| (.*) \|$", page, re.MULTILINE)
    ratios, percents = (row.split(" | ") for row in shown)
    assert [f"{100 * missed(float(r)):.0f} %" for r in ratios] == percents


@pytest.mark.parametrize(("lasts", "trials"), [(2, 300), (5, 300), (10, 200), (20, 60)])
def test_changes_that_do_not_last_are_missed_as_often_as_the_formula_says(lasts: int, trials: int) -> None:
    server, draw = Server(2), random.Random(lasts)
    server.fill(1, list(range(20)))
    server.step()
    for _ in range(trials):
        slot = draw.choice([slot for slot in range(20) if not server.canary.books.has_changed(slot)])
        server.bytes[slot, 0, 0] ^= 1
        for _ in range(lasts):
            server.step()
        server.bytes[slot, 0, 0] ^= 1
        for _ in range(draw.randrange(10)):
            server.step()
    found = server.canary.report().counts.get("changed", 0)
    assert 1 - found / trials == pytest.approx(missed(2 * lasts / 20), abs=0.07)
    server.canary.close()


def test_the_key_changes_every_digest() -> None:
    found = []
    for seed in (1, 2):
        server = Server(seed=seed)
        server.canary._ring.send([3])
        server.device.synchronize(server.stream)
        ((digests,),) = server.canary._ring.arrived()
        found.append(np.frombuffer(digests, np.uint64))
        server.canary.close()
    assert len(found[0]) == LAYERS and (found[0] != found[1]).all()


def pulled_out(server: Server) -> None:
    unplug(server.device)
    server.canary.step([])
    with suppress(DeviceError):
        server.device.synchronize(server.stream)


PLACES: dict[str, Callable[[Server], object]] = {
    "admitted": lambda server: server.canary.admitted(9, None, 3),  # type: ignore[arg-type]
    "loaded": lambda server: server.canary.loaded(77, 0, 4),
    "moved": lambda server: server.canary.moved([None]),  # type: ignore[list-item]
    "step": lambda server: server.canary.step([None]),  # type: ignore[list-item]
    "released": lambda server: server.canary.released([]),  # type: ignore[arg-type]
    "the device": pulled_out,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_of_ours_ends_the_canary_and_never_the_loop(place: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.fill(1, list(range(20)))
    with caplog.at_level(logging.ERROR):
        PLACES[place](server)
        for _ in range(5):
            server.canary.step([])
        server.canary.released(1)
        server.canary.close()
    assert "the canary stands down" in caplog.text
    assert server.canary.report().state.startswith("stood down in step")


def test_no_blocks_per_step_is_refused() -> None:
    with pytest.raises(SettingsError, match="blocks_per_step is 0"):
        Server(0)
