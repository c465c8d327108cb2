"""The machine below an engine: a device, the stream of its model, and memory that both see.

On a GPU the model is torch's, on the simulated device numpy's: there a forward pass is a host function in stream order,
which an event starts and a gate ends. Held work begins when the host waits for it, and not before: every device may be
that late, and a busy one is. So the order in which a fix matters is chosen, and no copy wins a race by luck.

numpy's matrix products get one thread: those of a small model are over before a second thread has begun. OpenBLAS,
which numpy's wheels bring, keeps its threads spinning, beside the threads of the simulated device. On two cores a step
then takes fifty times as long. It reads its environment when it is loaded; later a call sets the number of threads.
"""

import ctypes
import gc
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import perf_counter, sleep
from typing import Any, TypeAlias

import numpy as np

from trtllm_kvfix.engine.model import Array, Model
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.managers import tensors
from trtllm_kvfix.managers.layout import Element
from trtllm_kvfix.native import Device, DeviceArray, DeviceError, open_device
from trtllm_kvfix.staging import MovableMark, on_stream

Work: TypeAlias = Callable[[], None]
HELD_S_MAX = 60.0  # a step takes some milliseconds, and over ten seconds on crowded cores
HELD_S_MAX_ON_GPU = 0.25  # streams share queues, and drivers wait for all streams: then that step is just not late
WAIT_S_MAX = 180.0  # the watchdog comes first, which needs two looks
SPIN_S, POLL_S = 5e-3, 5e-5
# On the simulated device, where a look takes processor time from the step: an eighth of what was waited, up to so much.
POLLS_PER_WAIT, POLL_S_MAX = 8, 1e-3


def open_machine(name: str, *, seed: int = 0) -> "Machine":
    """`auto` is the first GPU where torch can use it, or else the simulated device."""
    try:
        device = open_device(name, seed=seed)
        torch = None if device.simulated else _torch()
        if name == "auto" and not device.simulated and torch is None:
            device = open_device("cpu", seed=seed)
    except (DeviceError, ValueError) as error:
        said = str(error).removeprefix(f"device is '{name}'; ")
        raise SettingsError(f"--device is '{name}': {said}") from error
    if not device.simulated and torch is None:
        raise SettingsError(f"--device is '{name}': on a GPU the engine needs torch with CUDA; pip install torch")
    if torch is not None:
        gc.collect()  # giving memory back waits for held streams: nothing of an earlier engine may be left to do so
    return Machine(device, torch)


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415  an extra
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.set_float32_matmul_precision("highest")  # some images have the shorter one as their default
    return torch


class DeviceMemory:
    """Device memory of ours, zeroed, and the array that the model sees."""

    def __init__(self, machine: "Machine", shape: Sequence[int]) -> None:
        self.memory: DeviceArray = machine.device.empty(shape, "int32")
        self.address, self.nbytes = self.memory.address, self.memory.nbytes
        seen = tensors.view(machine.device, self.memory, tuple(shape), Element("int32", "int32", 4))
        self.array: Array = np.asarray(seen) if machine.simulated else seen
        self.array[:] = 0


class Machine:
    def __init__(self, device: Device, torch: Any) -> None:
        if torch is None:
            use_one_thread()
        self.device = device
        self.xp: Any = np if torch is None else torch
        self._torch_stream: Any = torch and torch.cuda.Stream()
        self.stream: int = device.create_stream() if torch is None else self._torch_stream.cuda_stream
        self._worker = _HostFunctions(device, self.stream) if torch is None else None
        self._lock = Lock()  # guards the next five
        self._gates: deque[tuple[int, int]] = deque()  # (number, gate), closed
        self.held = 0  # gates closed so far
        self._copies: int | None = None  # the gate of another stream
        self._copies_held = 0  # such gates closed so far
        self._behind_copies = False  # the model's stream waits for what that gate holds
        self._watchdog: Thread | None = None
        self._closing = Event()
        self.opened_by_force = 0  # gates that had to be opened by force

    @property
    def simulated(self) -> bool:
        return self.device.simulated

    @contextmanager
    def current(self) -> Iterator[None]:
        """Send work that is enqueued inside to the model's stream."""
        inner = nullcontext() if self._torch_stream is None else self.xp.cuda.stream(self._torch_stream)
        with on_stream(self.device, self.stream), inner:
            yield

    def load(self, model: Model) -> Model:
        return model if self.simulated else model.on(lambda each: self.xp.from_numpy(each).cuda())

    def copy(self, dst: Any, src: Any, nbytes: int) -> None:
        """Reads its source when it executes."""
        self.device.copy(dst.address, src.address, nbytes, self.stream)

    def launch(self, work: Work) -> None:
        if self._worker is None:
            work()
        else:
            self._worker.launch(work)

    def hold(self) -> None:
        """Hold what is enqueued from now on until the host waits for it."""
        with self._lock:
            self.held += 1
            self._gates.append((self.held, self._closed(self.stream)))

    def let_go(self, number: int) -> None:
        """Release what stands behind the first `number` gates."""
        with self._lock:
            while self._gates and self._gates[0][0] <= number:
                self.device.open_gate(self._gates.popleft()[1])

    def hold_copies(self, stream: int, in_front_of: int | None = None) -> None:
        """Hold what another stream gets from now on, until it is released, or until the host waits for the model's
        stream, if that is what the held work stands in front of."""
        with self._lock:
            if self._copies is None:
                self._copies = self._closed(stream)
                self._copies_held += 1
                self._behind_copies = in_front_of == self.stream

    def copies_in_front(self) -> int:
        """The number of the gate that the model's stream waits for by way of another stream. 0: of none."""
        with self._lock:
            return self._copies_held if self._copies is not None and self._behind_copies else 0

    def let_copies_go(self, number: int | None = None) -> None:
        """`number`: unless another gate has been closed since that one."""
        with self._lock:
            if number not in (None, self._copies_held):
                return
            gate, self._copies = self._copies, None
            if gate is not None:
                self.device.open_gate(gate)

    @property
    def holds_copies(self) -> bool:
        return self._copies is not None

    def _closed(self, stream: int) -> int:
        if self._watchdog is None:
            self._watchdog = Thread(target=self._watch, name="kvfix-engine-watchdog", daemon=True)
            self._watchdog.start()
        return self.device.close_gate(stream)

    def _watch(self) -> None:
        """Open a gate by force: if the host itself waits for what it holds, nothing else can open it."""
        seen = None
        while not self._closing.wait(HELD_S_MAX if self.simulated else HELD_S_MAX_ON_GPU):
            held = self._gates[0] if self._gates else self._copies
            if held is not None and held == seen:
                self.opened_by_force += 1
                self.let_go(self.held)
                self.let_copies_go()
            seen = held

    def settle(self) -> None:
        """Wait until everything that the stream was given is over."""
        end = Fence(self, "everything that it was given")
        end.record()
        end.wait()

    def check(self) -> None:
        """Raise what a forward pass has raised, or that a gate had to be opened by force where no driver waits."""
        if self.simulated and self.opened_by_force:
            raise KvfixError(f"the host waited for a stream that it held itself, for more than {HELD_S_MAX:g} s")
        if self._worker is not None and self._worker.error is not None:
            raise KvfixError(f"a forward pass failed: {self._worker.error!r}") from self._worker.error

    def close(self) -> None:
        self._closing.set()
        if self._watchdog is not None:
            self._watchdog.join()
        self.let_go(self.held)
        self.let_copies_go()
        self.device.synchronize(self.stream)
        if self._worker is not None:
            self._worker.close()
            self.device.destroy_stream(self.stream)


class Fence:
    """An event behind what the stream has been given so far. No wait for it lasts forever."""

    def __init__(self, machine: Machine, what: str) -> None:
        self._machine = machine
        self._what = what
        self._mark = MovableMark(machine.device, machine.stream)
        self._behind = 0
        self._behind_copies = 0

    def record(self) -> None:
        self._behind, self._behind_copies = self._machine.held, self._machine.copies_in_front()
        self._mark.record()

    def wait(self) -> None:
        self._machine.let_go(self._behind)
        if self._behind_copies:
            self._machine.let_copies_go(self._behind_copies)
        begin = perf_counter()
        while not self._mark.done():
            waited = perf_counter() - begin
            if waited > WAIT_S_MAX:
                raise KvfixError(f"{self._machine.device.name} has not ended {self._what} within {WAIT_S_MAX:g} s")
            if self._machine.simulated:  # numpy's thread needs the interpreter meanwhile
                sleep(min(POLL_S_MAX, max(POLL_S, waited / POLLS_PER_WAIT)))
            elif waited > SPIN_S:
                sleep(POLL_S)
        self._machine.check()


class _HostFunctions:
    """Runs functions of the host in the order of a simulated stream."""

    def __init__(self, device: Device, stream: int) -> None:
        self.error: Exception | None = None
        self._device = device
        self._stream = stream
        self._queue: SimpleQueue[tuple[int, int, Work] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="kvfix-engine-forward", daemon=True)
        self._thread.start()

    def launch(self, work: Work) -> None:
        begin = self._device.create_event()
        self._device.record(begin, self._stream)
        self._queue.put((begin, self._device.close_gate(self._stream), work))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            begin, end, work = item
            try:
                self._device.wait(begin)
                work()
            except Exception as error:  # the stream must go on: the next wait for it raises this
                self.error = self.error or error
            finally:
                self._device.destroy_event(begin)
                self._device.open_gate(end)


MAPS = Path("/proc/self/maps")  # of Linux; elsewhere threads are left as they are
SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


def _openblas_libraries() -> set[str]:
    """The files of OpenBLAS that this process has mapped."""
    if not MAPS.exists():
        return set()
    mapped = (line.split(maxsplit=5)[5:] for line in MAPS.read_text(errors="surrogateescape").splitlines())
    # The last field is the path to its end: a folder's name may have spaces.
    paths = {path for fields in mapped for path in fields if re.search(r"openblas[^/]*\.so[^/]*$", path)}
    return {path for path in paths if not path.endswith(" (deleted)")}


@cache
def use_one_thread() -> None:
    """Use one thread in this process from now on."""
    for path in _openblas_libraries():
        library = ctypes.CDLL(path)
        for name in SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(1)
                break
