"""The fence: scheduling does not begin while the device has inputs to read, and not a moment later than that."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.faults import Fault, serve_with_every_buffer_right
from tests.fixes.proofs import Broken
from trtllm_kvfix import native
from trtllm_kvfix.fixes.input_copy_fence.fix import InputFence, ObservedUpstreamsFence, UpstreamsFence
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.staging import on_stream

WATCHDOG_S = 30.0


class Loop:
    """An executor's thread: prepares inputs on a held stream, then schedules."""

    def __init__(self, device: native.Device) -> None:
        self.device = device
        self.fence = InputFence()
        self.prepared, self.scheduled = threading.Event(), threading.Event()

    def prepare(self, engine: object, stream: int) -> None:
        with on_stream(self.device, stream):
            assert self.fence.recording(lambda _engine, value: value)(engine, "inputs") == "inputs"

    def schedule(self) -> str:
        def body(_executor: object) -> str:
            self.scheduled.set()
            return "batch"

        result: str = self.fence.waiting(body)(object())
        return result

    def run(self, *steps: tuple[object, int]) -> threading.Thread:
        def body() -> None:
            for engine, stream in steps:
                self.prepare(engine, stream)
            self.prepared.set()
            assert self.schedule() == "batch"

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        assert self.prepared.wait(WATCHDOG_S)
        return thread


@pytest.fixture
def device() -> native.Device:
    return native.open_device("cpu")


@pytest.fixture
def loop(device: native.Device) -> Loop:
    return Loop(device)


def assert_blocked(loop: Loop) -> None:
    # Nothing shows that a thread is blocked in the device. One that is not sets the event within microseconds.
    assert not loop.scheduled.wait(0.1)


def test_scheduling_waits_for_the_inputs_and_is_measured(loop: Loop, device: native.Device) -> None:
    stream = device.create_stream()
    before = counters.read()
    gate = device.close_gate(stream)
    thread = loop.run((object(), stream))
    assert_blocked(loop)
    device.open_gate(gate)
    thread.join(WATCHDOG_S)
    assert loop.scheduled.is_set()
    after = counters.read()
    assert after["fence_waits"] - before["fence_waits"] == 1
    assert after["fence_wait_seconds"] > before["fence_wait_seconds"]


def test_the_inputs_of_two_engines_are_one_wait(loop: Loop, device: native.Device) -> None:
    streams = [device.create_stream() for _ in range(2)]
    before = counters.read()["fence_waits"]
    gates = [device.close_gate(stream) for stream in streams]
    thread = loop.run(*((object(), stream) for stream in streams))
    for gate in gates:
        assert_blocked(loop)
        device.open_gate(gate)
    thread.join(WATCHDOG_S)
    assert loop.scheduled.is_set()
    assert counters.read()["fence_waits"] - before == 1


def test_inputs_that_have_been_read_cost_no_wait(loop: Loop, device: native.Device) -> None:
    stream = device.create_stream()
    loop.prepare(object(), stream)
    device.synchronize(stream)
    before = counters.read()["fence_waits"]
    assert loop.schedule() == "batch"
    assert counters.read()["fence_waits"] == before


def test_a_draft_engine_on_a_stream_of_its_own_is_awaited_too(loop: Loop, device: native.Device) -> None:
    target, draft = device.create_stream(), device.create_stream()
    gate = device.close_gate(draft)
    thread = loop.run((object(), draft), (object(), target))
    assert_blocked(loop)
    device.open_gate(gate)
    thread.join(WATCHDOG_S)
    assert loop.scheduled.is_set()


def test_what_comes_behind_the_inputs_is_not_waited_for(loop: Loop, device: native.Device) -> None:
    """The host may still run ahead of the forward step itself."""
    stream = device.create_stream()
    loop.prepare(object(), stream)
    gate = device.close_gate(stream)
    assert loop.schedule() == "batch"
    device.open_gate(gate)


def test_inputs_are_awaited_once(loop: Loop, device: native.Device) -> None:
    stream = device.create_stream()
    loop.prepare(object(), stream)
    loop.schedule()
    gate = device.close_gate(stream)
    with on_stream(device, stream):
        loop.schedule()
    device.open_gate(gate)


def test_an_engine_waits_for_its_own_last_inputs_where_nothing_is_scheduled(loop: Loop, device: native.Device) -> None:
    """Ranks of a pipeline run what another has scheduled. Another engine has buffers of its own and need not wait."""
    engine, other, stream = object(), object(), device.create_stream()
    again = threading.Event()

    def body() -> None:
        loop.prepare(engine, stream)
        loop.prepare(other, stream)
        loop.prepared.set()
        loop.prepare(engine, stream)
        again.set()

    gate = device.close_gate(stream)
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    assert loop.prepared.wait(WATCHDOG_S)
    assert not again.wait(0.1)
    device.open_gate(gate)
    thread.join(WATCHDOG_S)
    assert again.is_set()


def test_another_thread_waits_for_nothing_of_this_one(loop: Loop, device: native.Device) -> None:
    stream = device.create_stream()
    gate = device.close_gate(stream)
    loop.prepare(object(), stream)
    other = threading.Thread(target=loop.schedule, daemon=True)
    other.start()
    other.join(WATCHDOG_S)
    assert loop.scheduled.is_set()
    device.open_gate(gate)
    loop.schedule()


# ---- upstream's own wait, in the loop of a pipeline's ranks ----


class UpstreamsEvent:
    """As torch's. It is passed as soon as somebody has waited for it."""

    def __init__(self) -> None:
        self.waits, self.is_passed = 0, False

    def query(self) -> bool:
        return self.is_passed

    def wait(self) -> None:
        self.waits, self.is_passed = self.waits + 1, True


def upstreams_executor(event: UpstreamsEvent, *, has_runner: bool = False) -> Any:
    """The engine keeps the event, or its runner does, as in builds whose engine has its steps made by one."""
    owner = SimpleNamespace(_prepare_inputs_event=event)
    engine = SimpleNamespace(_runner=owner) if has_runner else owner
    return SimpleNamespace(model_engine=engine, _wait_for_model_engine_input_copy=event.wait)


@pytest.mark.parametrize("has_runner", [False, True], ids=["engine", "runner"])
def test_upstream_s_own_wait_is_made_each_time_and_counted_where_it_waits(has_runner: bool) -> None:
    event = UpstreamsEvent()
    executor = upstreams_executor(event, has_runner=has_runner)
    begin = UpstreamsFence().waiting(lambda _executor, microbatch: (microbatch, event.waits))
    before = counters.read()["fence_waits"]
    assert begin(executor, 3) == (3, 1)
    assert counters.read()["fence_waits"] - before == 1
    assert begin(executor, 4) == (4, 2)
    assert counters.read()["fence_waits"] - before == 1


def test_what_upstream_s_wait_raises_ends_the_step() -> None:
    def fails() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    executor = upstreams_executor(UpstreamsEvent())
    executor._wait_for_model_engine_input_copy = fails
    begun: list[object] = []
    with pytest.raises(RuntimeError, match="illegal memory access"):
        UpstreamsFence().waiting(begun.append)(executor)
    assert begun == []


def test_an_observer_of_upstream_s_wait_counts_and_does_not_wait() -> None:
    event = UpstreamsEvent()
    begin, executor = ObservedUpstreamsFence().waiting(lambda _: event.waits), upstreams_executor(event)
    before = counters.observed.by_fix().get("input-copy-fence", 0)
    assert begin(executor) == 0
    event.is_passed = True
    assert begin(executor) == 0
    counters.read()
    assert counters.observed.by_fix()["input-copy-fence"] - before == 1


def test_a_build_without_an_event_that_anybody_knows_is_waited_for_and_not_counted() -> None:
    waited: list[int] = []
    executor = SimpleNamespace(model_engine=object(), _wait_for_model_engine_input_copy=lambda: waited.append(1))
    before = counters.read()["fence_waits"]
    UpstreamsFence().waiting(lambda _: None)(executor)
    assert waited == [1] and counters.read()["fence_waits"] == before


# ---- for the tests of all fixes (proofs.py) ----

MECHANISM = "fixes.input_copy_fence.fix"
BROKEN = Broken(f"{MECHANISM}.InputFence.wait", lambda *_: None)

CALLS = (
    *(f"{MECHANISM}.InputFence.{name}" for name in ("record", "_due")),
    *(f"{MECHANISM}.{name}" for name in ("wait_for", "stream_marks")),
    *(f"native.StreamMarks.{name}" for name in ("record", "wait")),
    "metrics.counters.fence_waits",
)

# All that is ours where the wait is upstream's.
COUNTING = (
    f"{MECHANISM}._pending_event",
    f"{MECHANISM}.UpstreamsFence.count_wait",
    "metrics.counters.fence_waits",
)
OF_PIPELINES = {"pipeline_parallel_size": 2}
PLACES = (
    *(Fault(name, variant, serve_with_every_buffer_right) for variant in ("A", "B", "C") for name in CALLS),
    *(
        Fault(name, variant, serve_with_every_buffer_right, OF_PIPELINES)
        for variant in ("D", "F")
        for name in (
            f"{MECHANISM}._pending_event",
            f"{MECHANISM}.UpstreamsFence.count_wait",
            "metrics.counters.fence_waits",
        )
    ),
)
