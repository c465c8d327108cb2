"""Bound methods that other threads call, made to take turns with the executor's own calls (H4).

Upstream's bound manager releases the GIL inside nearly every method, so a thread that pins blocks enters while the
executor is inside. The attributes of the bound class are replaced by callables that take the one lock of this process
first. The object itself stays what it is: C++ constructors check its type.

Lock order: this lock, then upstream's own mutexes, then the GIL. No thread waits for the lock with the GIL held, so a
callback that comes back into Python from inside a call gets the GIL; it holds the lock already and may call again. But
it must not wait for another thread that calls the manager: that call cannot begin before this one ends.

The lock is native and cannot fail, so it needs no fallback.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from traceback import StackSummary, walk_stack
from typing import TYPE_CHECKING, Any

from trtllm_kvfix import native
from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.hazards.h4_eviction_structures import simulated as h4
from trtllm_kvfix.log import log
from trtllm_kvfix.metrics import counters, counting
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.upstream import BINDINGS, BOUND_MANAGERS, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


ID = "concurrent-pins"
CALLS_SHOWN = 4
STALL_S = 10.0  # a call takes microseconds; an admission with transfers, milliseconds


class Turns:
    def __init__(self, *, stall_s: float = STALL_S) -> None:
        self._lock = native.TurnLock()
        self._stall_s = stall_s
        self._counted = (0.0, 0.0)
        counting.refresh(self)

    def guarded(self, original: Callable[..., Any], counter: counters.Counter | None = None) -> Callable[..., Any]:
        """Calls `original` in its turn. As a class attribute it binds like any method."""
        name = getattr(original, "__name__", repr(original))
        in_turn = self._lock.guarded(original, partial(self._say_who_is_inside, name), self._stall_s)
        if counter is None:
            return in_turn

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = in_turn(*args, **kwargs)
            try:
                counter.add()
            except Exception as error:
                tried = fuse.of(ID)
                tried.fault(error)
                tried.in_a_row = 0  # turns need no counts, so there is nothing to stand down from
            return result

        return counted

    def stats(self) -> native.TurnLockStats:
        return self._lock.stats()

    def count(self) -> None:
        stats = self._lock.stats()
        now = (float(stats.waits), stats.wait_us / 1e6)
        counters.lock_waits.add(now[0] - self._counted[0])
        counters.lock_wait_seconds.add(now[1] - self._counted[1])
        self._counted = now

    def _say_who_is_inside(self, name: str) -> None:
        """A silent hang helps nobody."""
        log.error(
            "thread %s has waited %g s to call %s of the KV-cache manager; inside it is %s; usual cause: a "
            "connector's callback waits for a thread that calls the manager",
            threading.current_thread().name,
            self._stall_s,
            name,
            _whereabouts(self._lock.stats().holder),
        )


def _whereabouts(thread: int) -> str:
    """The name of a thread, and its innermost calls."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "no thread of Python"
    names = {each.ident: each.name for each in threading.enumerate()}
    calls = StackSummary.extract(walk_stack(frame), limit=CALLS_SHOWN, lookup_lines=False)
    shown = ", called by ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in calls)
    return f"thread {names.get(thread, thread)} in {shown}"


# ---- when it is needed, and what it replaces ----

# Bound for the threads that lend blocks to other processes; the executor does without them.
CALLED_BY_OTHERS = ("find_and_pin_blocks_by_hash", "pin_blocks_by_id", "force_offload_and_pin_blocks_by_hash")
# The C++ scheduler gets the bound manager as an argument and reads its queues.
ALGORITHMS = "tensorrt_llm.bindings.internal.algorithms"
SCHEDULER = "CapacityScheduler.__call__"

COUNTED = {
    "find_and_pin_blocks_by_hash": counters.pins,
    "force_offload_and_pin_blocks_by_hash": counters.pins,
    "pin_blocks_by_id": counters.pins,
    "pin_blocks": counters.pins,
    "unpin_blocks_by_id": counters.unpins,
}


def probe(up: Upstream) -> Answer:
    if up.bindings is None:
        return absent("there is no bound KV-cache manager")
    names = {name for _, name in _methods(up)}
    if not names:
        return unknown(f"none of {', '.join(BOUND_MANAGERS)} in {BINDINGS} has a method")
    called = [name for name in CALLED_BY_OTHERS if name in names]
    if not called:
        return absent("nothing is bound for other threads to call; the executor's thread is alone with the manager")
    if "add_token" not in names or not names & {"add_sequence", "add_sequence_batch"}:
        return unknown(f"{', '.join(called)} are bound, but not the calls of the executor that they race with")
    return needed(f"other threads call {', '.join(called)} while the executor is inside the manager")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    turns = Turns()

    def guarding(name: str) -> Any:
        return lambda original: turns.guarded(original, COUNTED.get(name))

    made = [Replacement(Seam(BINDINGS, f"{owner}.{name}"), guarding(name)) for owner, name in _methods(up)]
    if up.has(ALGORITHMS, SCHEDULER) and "__call__" in vars(up.attribute(ALGORITHMS, "CapacityScheduler")):
        made.append(Replacement(Seam(ALGORITHMS, SCHEDULER), guarding("__call__")))
    return made


def _methods(up: Upstream) -> Iterator[tuple[str, str]]:
    """(class, method) of what the bound classes themselves hold; properties read plain fields and stay."""
    for owner in BOUND_MANAGERS:
        for name, value in vars(up.attribute(BINDINGS, owner) or object).items():
            if not name.startswith("_") and callable(value) and not isinstance(value, type):
                yield owner, name


def self_test() -> None:
    turns = Turns()
    h4.self_test(turns.guarded, lambda: turns.stats().queued)


FIX = Fix(
    id=ID,
    hazard="H4",
    title="Threads that pin blocks take turns with the executor, by one lock around the bound manager",
    upstream=("T#15018", "T#16913"),
    only_for="V1",
    triggers=(BINDINGS, ALGORITHMS),
    probe=probe,
    replacements=replacements,
    self_test=self_test,
    expected=in_variants(needed="C", absent="A B B2 D F"),
)
