"""A scenario says what is served, and what must come of it. Each scenario is chosen so that the unsafe code fails in
it.

`hazard` names the fix without which upstream fails here; where it is empty, upstream is right, and the overlay must
leave it so. A scenario that has no failing arm would prove nothing, and the report says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.loads import Offer
from integration.upstream.server import Outcome, Server, Shape

ALL = "all"
BUDGET = "token-budget"
ADMISSION = "batched-admission"
STAGING = "staged-offsets-v1"
STAGING_V2 = "staged-offsets-v2"


def prompt(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


# Kinds of scenarios with a loop.
LOOPS = ("serve", "native", "pp", "pp-inputs", "draft", "full-pool", "v2", "v2-awaited", "v2-newest")
V1_ERAS = ("A", "S", "B2", "C", "D")
ESTIMATING_ERAS = ("C", "D")  # whose schedulers charge a prompt less what they believe to be cached
CONNECTOR_ERAS = ("A", "S", "B2", "D")  # C's excerpts hold a manager and a connector of different ages


@dataclass(frozen=True)
class Scenario:
    name: str
    fix: str  # the one that the scenario is about, or ALL
    hazard: bool  # upstream alone fails here
    shape: Shape
    arrivals: tuple[Arrival, ...]
    cancels: dict[int, list[int]] = field(default_factory=dict)
    prepare: Callable[[Server], None] = lambda _: None
    connector: str = ""  # "recorder", "loading", "reserving" or "ours"
    reused_min: int = 0  # prompt tokens that must not be computed
    recomputed_min: int = 0  # requests that must compute what our connector failed to load
    moves_min: int = 0  # blocks that must be copied: within the device, to the host tier and back
    eras: tuple[str, ...] = V1_ERAS
    mended: tuple[str, ...] = ()  # eras that do without the fix: there, upstream alone is right
    fails: tuple[int, ...] = ()  # requests that are answered with an error, as upstream does
    dies_of: str = ""  # what ends the loop, with us as without
    leaks: bool = False  # upstream never gives back the blocks of who failed
    asked_once: bool = False  # a connector is asked once about each request
    calls_differ: bool = False  # with the fix, other tokens are found in the cache, so a connector is asked for others
    slots_differ: bool = False  # with the fix, a connector is given other slots, and hears the same besides
    # "pp": two ranks; "pp-inputs": the same, with upstream's input preparation;
    # "v2", "v2-awaited", "v2-newest": V2's manager; "v2-steps", "v2-offsets": the same without a loop
    kind: str = "serve"
    offers: dict[int, Offer] = field(default_factory=dict)  # what a loading connector has of each prompt

    def complaints(self, outcome: Outcome) -> list[str]:
        wanted = {each.id for each in self.arrivals} - {each for ids in self.cancels.values() for each in ids}
        found = []
        if outcome.died and not (self.dies_of and self.dies_of in outcome.died):
            found.append(f"died: {outcome.died}")
        if (
            self.dies_of and not outcome.died and not self.kind.startswith("pp")
        ):  # of two ranks, one may end and the other starve
            found.append(f"the loop goes on, where upstream's ends with {self.dies_of!r}")
        if set(outcome.failed) != set(self.fails):
            found.append(f"failed: {outcome.failed}, where {self.fails or 'nobody'} should")
        if outcome.wrong_rows:
            found.append(f"wrong offsets ({len(outcome.wrong_rows)}): {outcome.wrong_rows[0]}")
        if outcome.corrupt:
            found.append(f"corrupt ({len(outcome.corrupt)}): {outcome.corrupt[0]}")
        if not outcome.died and not wanted <= {*outcome.answered, *outcome.failed}:
            found.append(f"unanswered: {sorted(wanted - {*outcome.answered, *outcome.failed})}")
        is_over = set(self.fails) == set(outcome.failed) and not outcome.died
        if self.kind in LOOPS and is_over and outcome.released == self.leaks:
            found.append(
                "blocks are not released" if not self.leaks else "blocks are released, which upstream's are not"
            )
        reused = sum(len(each.prompt) for each in self.arrivals) - outcome.computed
        if self.kind in LOOPS and not outcome.died and 0 < self.reused_min > reused:
            found.append(f"reused {reused} tokens, {self.reused_min} were to be had")
        if not outcome.died and outcome.moves < self.moves_min:
            found.append(f"{outcome.moves} blocks were copied, {self.moves_min} should have been")
        return found + outcome.remarks + [f"fault in {fix}: {error}" for fix, error in outcome.faults.items()]


SERVED = (Arrival(1, prompt(0, 10), 5), Arrival(2, prompt(100, 11), 6, at=1), Arrival(3, prompt(0, 10), 3, at=3))
# No two share a prefix.
APART = (Arrival(1, prompt(0, 10), 5), Arrival(2, prompt(100, 11), 6, at=1), Arrival(3, prompt(200, 10), 3, at=3))
PLAIN = Shape()


def believes(tokens: dict[int, int]) -> Callable[[Server], None]:
    """The scheduler takes so many tokens of a prompt to be cached, which they no longer are."""

    def prepare(server: Server) -> None:
        server.executor.scheduler.estimate = lambda request: tokens.get(request.py_request_id, 0)

    return prepare


def pauses(request_id: int, at_schedule: int, state: str = "GENERATION_IN_PROGRESS") -> Callable[[Server], None]:
    """The scheduler preempts a request that is in this state."""

    def prepare(server: Server) -> None:
        count = 0

        def pause(ready: list[Any]) -> list[Any]:
            nonlocal count
            count += 1
            wanted = getattr(server.batch_manager.LlmRequestState, state)
            chosen = [each for each in ready if each.py_request_id == request_id]
            return [each for each in chosen if count == at_schedule and each.state == wanted]

        server.executor.scheduler.pause = pause

    return prepare


def _offsets() -> list[Scenario]:
    """The table is rewritten by upstream's own next steps while its copy is pending."""
    variants = {
        "overlap": PLAIN,
        "pools": replace(PLAIN, heads=(1, 2), layers=4),
        "beams": replace(PLAIN, beams=2, reuse=False),
        "windows": replace(PLAIN, windows=(64, 16), layers=4),
    }
    eras = {"beams": tuple(era for era in V1_ERAS if era != "A")}  # A's excerpt of attention metadata knows no beams
    return [
        Scenario(f"offsets-{name}", STAGING, True, shape, APART, mended=("D",), eras=eras.get(name, V1_ERAS))
        for name, shape in variants.items()
    ] + [
        Scenario("offsets-v2", STAGING_V2, True, PLAIN, APART, eras=("S", "B2", "N", "O"), kind="v2-offsets"),
        Scenario("offsets-v2-by-layer", STAGING_V2, True, PLAIN, APART, eras=("N", "O"), kind="v2-by-layer"),
        # The host waits for each batch before it prepares the next: nothing is overwritten.
        Scenario("offsets-plain-loop", STAGING, False, replace(PLAIN, overlap=False), SERVED),
    ]


def _admission() -> list[Scenario]:
    first = (Arrival(1, prompt(0, 24), 1), Arrival(2, prompt(200, 16), 1))
    # Both come in one batch; the first needs the room in which the second's prefix lies.
    later = (Arrival(3, prompt(400, 24), 1, at=8), Arrival(4, prompt(0, 24) + prompt(900, 4), 1, at=8))
    plain = replace(PLAIN, overlap=False)
    tight = Shape(blocks=14, max_seq_len=40, windows=(40,), budget=64)
    return [
        Scenario("admission-order", ADMISSION, True, tight, (*first, *later), reused_min=24, eras=("S", "B2")),
        Scenario("admission-windows", ADMISSION, False, replace(plain, windows=(64, 16), layers=4), APART),
        Scenario("admission-single", ADMISSION, False, plain, SERVED),
    ]


def _budget() -> list[Scenario]:
    two = (Arrival(1, prompt(0, 12), 3), Arrival(2, prompt(100, 12), 3))
    small = Shape(budget=16, overlap=False)
    chunked = replace(small, chunked=True)
    overlapped = replace(chunked, overlap=True)
    again = (Arrival(1, prompt(0, 12), 3), Arrival(2, prompt(100, 12), 3), Arrival(3, prompt(100, 12), 3, at=3))
    at_once = (*two, Arrival(3, prompt(100, 12), 3, at=1))
    believed: dict[str, Any] = {"prepare": believes({2: 8}), "eras": ESTIMATING_ERAS}
    return [
        Scenario("budget-deferral", BUDGET, True, small, two, **believed),
        Scenario("budget-chunked", BUDGET, True, chunked, two, **believed, mended=("D",)),
        # With both fixes, since the overlap loop corrupts offsets, too.
        Scenario("budget-overlap", ALL, True, overlapped, two, **believed, mended=("D",)),
        # Another request comes with the prompt of the one that was put off, while that one waits.
        Scenario("budget-stored", BUDGET, True, small, again, **believed),
        # The same, where a chunk is made smaller and nothing is put off.
        Scenario("budget-chunked-stored", BUDGET, True, chunked, at_once, **believed, mended=("D",)),
        Scenario("budget-kept", BUDGET, False, replace(small, chunked=True), two),
        Scenario(
            "budget-cancelled",
            BUDGET,
            True,
            small,
            two,
            prepare=believes({2: 8}),
            cancels={1: [2]},
            connector="recorder",
            eras=("D",),
        ),
    ]


def _life() -> list[Scenario]:
    """Requests that end early, with every fix on."""
    plain = replace(PLAIN, overlap=False)
    two_chunks = replace(plain, chunked=True, budget=16, chunk_max=8)
    recorded: dict[str, Any] = {"connector": "recorder", "eras": CONNECTOR_ERAS}
    same = (Arrival(1, prompt(0, 24), 2), Arrival(2, prompt(0, 24), 2, at=1))
    together = (Arrival(1, prompt(0, 10), 3), Arrival(2, prompt(100, 11), 3), Arrival(3, prompt(0, 10), 3, at=5))
    return [
        Scenario("cancel", ALL, False, plain, SERVED, cancels={3: [2]}),
        Scenario("preempt", ALL, False, plain, SERVED, prepare=pauses(1, 4)),
        Scenario("chunks", ALL, False, replace(plain, chunked=True, budget=8), SERVED),
        # The second comes while the first is in the middle of the prompt that they share.
        Scenario("chunks-shared", ALL, True, two_chunks, same, mended=("B2", "C", "D")),
        Scenario("connector-together", ALL, False, plain, together, **recorded),
        Scenario("chunks-overlap", STAGING, True, replace(PLAIN, chunked=True, budget=8), SERVED, mended=("D",)),
        Scenario("connector-recorder", ALL, False, plain, SERVED, **recorded),
        Scenario("connector-recorder-overlap", ALL, True, PLAIN, SERVED, mended=("D",), **recorded),
        Scenario("connector-ours", ALL, False, plain, SERVED, connector="ours", eras=CONNECTOR_ERAS),
        Scenario("connector-ours-v2", BUDGET, False, plain, SERVED, connector="ours", eras=("N", "O"), kind="v2-steps"),
        Scenario(
            "connector-recorder-v2",
            BUDGET,
            False,
            plain,
            SERVED,
            connector="recorder",
            eras=("N", "O"),
            kind="v2-steps",
        ),
    ]


def _others() -> list[Scenario]:
    # They are made of what is here.
    from integration.upstream import input_scenarios  # noqa: PLC0415
    from integration.upstream.ending_scenarios import drafts, endings, failures  # noqa: PLC0415
    from integration.upstream.failed_loads import failed_loads  # noqa: PLC0415
    from integration.upstream.full_pool import full_pool  # noqa: PLC0415
    from integration.upstream.load_scenarios import loading  # noqa: PLC0415
    from integration.upstream.native_scenarios import natives  # noqa: PLC0415
    from integration.upstream.pipeline_scenarios import pipelines  # noqa: PLC0415
    from integration.upstream.reserved_loads import reserved_loads  # noqa: PLC0415
    from integration.upstream.trim_scenarios import trimming  # noqa: PLC0415
    from integration.upstream.v2_full_pool import v2_full_pool  # noqa: PLC0415
    from integration.upstream.v2_scenarios import loops  # noqa: PLC0415

    early = endings() + failures() + drafts()
    late = loading() + failed_loads() + full_pool() + reserved_loads() + natives()
    return pipelines() + early + loops() + late + v2_full_pool() + trimming() + input_scenarios.scenarios()


SCENARIOS = tuple(_offsets() + _admission() + _budget() + _life() + _others())
