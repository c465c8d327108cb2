"""Calls on the bound manager take turns, whichever thread they come from (H4)."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.concurrent_pins.mechanism import Turns
from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.hazards.h4_eviction_structures import simulated as h4
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.upstream import BINDINGS, BOUND_MANAGERS, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

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
    id="concurrent-pins",
    hazard="H4",
    title="Threads that pin blocks take turns with the executor, by one lock around the bound manager",
    upstream=("T#15018", "T#16913"),
    triggers=(BINDINGS, ALGORITHMS),
    probe=probe,
    replacements=replacements,
    self_test=self_test,
    expected=in_variants(needed="C", absent="A B B2 D F"),
)
