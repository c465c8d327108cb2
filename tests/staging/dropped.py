"""A native object is dropped while the device holds what it waits for, which another Python thread releases.

    python -m tests.staging.dropped DEVICE KIND

Prints who opened the gate. If the object waited with the GIL, nobody could, and the program does not end by itself.
"""

import faulthandler
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import fresh
from trtllm_kvfix import native

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60
POOL_BYTES = 1 << 21


class Scene:
    """Copies wait on a stream behind a closed gate."""

    def __init__(self, device: native.Device) -> None:
        self.device = device
        self.stream = device.create_stream()
        self.source = device.pinned([1, 1, 2, 4], "int32")
        self.target = device.empty([1, 1, 2, 4], "int32")
        # Before the gate is closed, since the first launch of a kernel waits for the device.
        self.stager().close()
        device.synchronize(self.stream)

    def hold(self) -> int:
        return self.device.close_gate(self.stream)

    def stager(self) -> native.OffsetStager:
        made = native.OffsetStager(
            device=self.device, layout="v1", num_pools=1, rows_max=1, blocks_max=4, mode="early_copy", slots=2
        )
        made.ship(self.target, self.source.array, 1, stream=self.stream)
        return made

    def copy_engine(self) -> native.CopyEngine:
        made = native.CopyEngine(self.device)
        made.submit([self.target.address], [self.source.address], [self.source.nbytes], stream=self.stream)
        return made


KINDS: dict[str, Callable[[Scene], Any]] = {
    "stager": Scene.stager,
    "copy engine": Scene.copy_engine,
    # These wait on a GPU alone, whose driver gives memory back behind all streams.
    "pinned array": lambda scene: scene.device.pinned([4], "int32"),
    "device array": lambda scene: scene.device.empty([4], "int32"),
    "host pool": lambda scene: native.HostPool(scene.device, host_bytes=POOL_BYTES, block_bytes=4096),
}
EVERYWHERE = ("stager", "copy engine")


def check_apart(device_name: str, kind: str) -> None:
    """Runs this program, for tests."""
    command = [sys.executable, "-m", __name__, device_name, kind]
    ran = fresh.run(command, cwd=ROOT, limit_s=5 * LIMIT_S)
    assert (ran.returncode, ran.stdout.strip()) == (0, "another thread"), ran.stderr


def main(device_name: str, kind: str) -> None:
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    sys.setswitchinterval(10 * LIMIT_S)  # nobody takes the GIL from a thread that does not give it away
    scene = Scene(native.open_device(device_name))
    begins, goes_on = threading.Event(), threading.Event()
    held: list[Any] = []
    made_before = kind not in EVERYWHERE
    if made_before:
        held.append(KINDS[kind](scene))
    gate = scene.hold()
    if not made_before:
        held.append(KINDS[kind](scene))

    def open_gate() -> None:
        begins.wait()
        goes_on.set()
        scene.device.open_gate(gate)

    opener = threading.Thread(target=open_gate)
    opener.start()
    begins.set()
    held.clear()
    sys.stdout.write("another thread\n" if goes_on.is_set() else "nobody\n")
    opener.join()
    scene.device.synchronize(scene.stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
