"""Where the fixes that stage, fence and order may fail, and the traffic that comes by there."""

import threading
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from tests.executor.test_concurrent_pins import Scene
from tests.fixes.faults import Place, serve, serve_with_every_buffer_right
from trtllm_kvfix.fixes.concurrent_pins import mechanism as turns
from trtllm_kvfix.fixes.nixl_listener.record import ADAPTERS
from trtllm_kvfix.metrics import counters

V1 = "fixes.staged_offsets_v1"
V2 = "fixes.staged_offsets_v2"
FENCE = "fixes.input_copy_fence.mechanism"
WATCHDOG_S = 30.0

# ---- staging ----

MAKING = ("native.NativeStager", "native.OffsetRoute", "staging.offset_stager.Destination.of")
SHIPPING = ("staging.offset_stager.OffsetStager.ship", "native.OffsetRoute.ship")

V1_CALLS = (
    f"{V1}.mechanism._destination",
    *(f"{V1}.destination.{name}" for name in ("StagedDestination.begin", "StagedDestination.receive")),
    f"{V1}.destination.StagedDestination._ship",
    *(f"{V1}.destination.{name}" for name in ("memory_of", "is_too_wide", "_is_plain")),
    "staging.stagers.Stagers.of",
    "staging.stagers.current_place",
    "staging.stagers.OffsetStager",
    *MAKING,
    *SHIPPING,
)
V1_LENT = (
    f"{V1}.destination.StagedDestination.settle",
    "staging.offset_stager.OffsetStager.settle",
    "native.NativeStager.settle",
)

STAGED_V1 = (
    *(Place(name, "A", serve) for name in V1_CALLS),
    *(Place(name, variant, serve) for variant in ("B", "C") for name in (*V1_CALLS, *V1_LENT)),
    *(Place(f"{V1}.destination.{name}", "C", serve, attributes=(("staging.stagers.POOLS_MAX", 0),))
      for name in ("StagedDestination._recognised", "StagedDestination._ship_parts")),
)  # fmt: skip

WITH_V2: dict[str, Any] = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}
PER_LAYER: dict[str, Any] = {"kv_cache_config": {"use_kv_cache_manager_v2": True, "enable_swa_scratch_reuse": True}}
DRAFTING: dict[str, Any] = {"speculative_config": {}}
TOO_WIDE = (("staging.stagers.POOLS_MAX", 1),)

V2_CALLS = (
    *(f"{V2}.mechanism.{name}" for name in ("is_on_device", "is_too_wide", "memory_of")),
    "staging.stagers.current_place",
    "staging.stagers.OffsetStager",
    *MAKING,
    *SHIPPING,
)
V2_WIDE = (
    *(f"{V2}.private_rows.PrivateRows.{name}" for name in ("of", "keep")),
    f"{V2}.private_rows.current_place",
    *(f"native.Device.{name}" for name in ("create_event", "record", "done")),
)

STAGED_V2 = (
    *(Place(name, variant, serve, WITH_V2) for variant in ("B", "C") for name in V2_CALLS),
    *(Place(name, variant, serve, WITH_V2 | DRAFTING, draft=True) for variant in ("D", "F") for name in V2_CALLS),
    Place("staging.stagers.Stagers.of", "B", serve, WITH_V2),
    Place("staging.stagers.Stagers.of_lasting", "C", serve, WITH_V2),
    Place(f"{V2}.mechanism.v2", "C", serve, WITH_V2),
    *(Place(name, variant, serve, WITH_V2, attributes=TOO_WIDE) for variant in ("B", "C") for name in V2_WIDE),
    *(Place(f"{V2}.mechanism.{name}", "D", serve, PER_LAYER | DRAFTING, draft=True)
      for name in ("_private", "fresh_pinned")),
)  # fmt: skip

# ---- the fence ----

FENCE_CALLS = (
    *(f"{FENCE}.InputFence.{name}" for name in ("record", "_due", "_marks")),
    *(f"{FENCE}.{name}" for name in ("Mark", "Mark.record", "Mark.wait", "wait_for", "current_place")),
    *(f"native.Device.{name}" for name in ("create_event", "record", "done", "wait")),
    "metrics.counters.fence_waits",
)

FENCED = tuple(
    Place(name, variant, serve_with_every_buffer_right) for variant in ("A", "B", "C") for name in FENCE_CALLS
)

# ---- turns ----


class Plain:
    """What the mechanism takes for `threading.RLock`: it says when a thread has to wait for it."""

    contended = threading.Event()

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release

    def acquire(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.contended.set()
            self._lock.acquire()


def pin_from_two_threads(place: Place) -> None:
    """A second thread pins while the first has read a count and not written it."""
    del place
    scene = Scene()
    second = threading.Thread(target=scene.pin_found, daemon=True)
    Plain.contended.clear()

    def meanwhile() -> None:
        if second.ident is not None:
            return
        waits = counters.read()["lock_waits"]
        second.start()
        while second.is_alive() and not Plain.contended.is_set() and counters.read()["lock_waits"] == waits:
            second.join(0.001)

    with scene.pauses.at(scene.pauses.PIN_COUNT_READ, meanwhile):
        scene.pin_found()
        second.join(WATCHDOG_S)
    assert not second.is_alive(), "the second thread hangs"
    assert scene.impl.pin_counts == dict.fromkeys(scene.block_ids, 2)
    for _ in range(3):
        scene.impl.unpin_blocks_by_id(scene.block_ids)
        scene.pin_found()
    scene.server.close()


QUICK = (
    ("fixes.concurrent_pins.record.Turns", partial(turns.Turns, stall_s=0.05)),
    ("fixes.concurrent_pins.mechanism.threading", SimpleNamespace(**{**vars(threading), "RLock": Plain})),
)

TURNS = (
    Place("native.TurnLock.acquire", "C", pin_from_two_threads, attributes=QUICK),
    Place("native.TurnLock.release", "C", pin_from_two_threads, at_once=True, attributes=QUICK),
    Place("metrics.counters.pins", "C", pin_from_two_threads, stands_down=False, attributes=QUICK),
)

# ---- agents ----


def configure(place: Place) -> None:
    """As the adapter does. Where we fail, upstream has its arguments as they came."""
    nixl = import_module("nixl")
    scope = {"__name__": ADAPTERS[0], "nixl_agent_config": nixl.nixl_agent_config}
    made = [eval("nixl_agent_config(True, True, backends=['UCX'])", scope) for _ in range(4)]
    assert all(config.backends == ["UCX"] for config in made)
    assert made[0].enable_listen_thread, f"{place} was never come by"


AGENTS = (Place("fixes.nixl_listener.mechanism._switched_off", "C", configure, nixl=True),)

PLACES = {
    "staged-offsets-v1": STAGED_V1,
    "staged-offsets-v2": STAGED_V2,
    "input-copy-fence": FENCED,
    "concurrent-pins": TURNS,
    "nixl-listener": AGENTS,
}
