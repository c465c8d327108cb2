"""Requests that end before they are done: cancelled, preempted, put off, failed. And those of a draft model, too.

Upstream alone shows what becomes of the others. Where it is right, or ends, the overlay must leave it so.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.scenarios import (
    ADMISSION,
    ALL,
    APART,
    BUDGET,
    CONNECTOR_ERAS,
    ESTIMATING_ERAS,
    PLAIN,
    SERVED,
    Scenario,
    believes,
    pauses,
    prompt,
)
from integration.upstream.server import Server, Shape

ALONE = replace(PLAIN, overlap=False)
IN_CHUNKS = replace(ALONE, chunked=True, budget=16, chunk_max=8)
# The second comes with the first one's prompt, and when that one is gone.
SAME_LATER = (Arrival(1, prompt(0, 24), 3), Arrival(2, prompt(0, 24), 3, at=5), Arrival(3, prompt(300, 6), 4, at=2))
AFTER_ANOTHER = (
    Arrival(1, prompt(0, 10), 5),
    Arrival(2, prompt(100, 11), 6, at=1),
    Arrival(3, prompt(200, 9), 3, at=9),
)
TWO = (Arrival(1, prompt(0, 12), 3), Arrival(2, prompt(100, 12), 3))
SMALL = Shape(budget=16, overlap=False)
# Where a step fails for all, these forget the requests before they have given back what those hold.
LEAKING = ("A", "S", "B2", "C")


def failing(where: str, at: int) -> Callable[[Server], None]:
    """A step of the loop raises when it is called for this time, and never again."""

    def prepare(server: Server) -> None:
        owner: Any = {
            "forward": server.engine,
            "sample_async": server.executor.sampler,
            "update_requests": server.executor.sampler,
            "prepare_resources": server.manager,
        }[where]
        original, calls = getattr(owner, where), 0

        def step(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                if where == "update_requests":  # the batch has run; its tokens are lost
                    server.executor.sampler.finish(args[0])
                raise RuntimeError(f"{where} fails")
            return original(*args, **named)

        setattr(owner, where, step)

    return prepare


def endings() -> list[Scenario]:
    in_prompt: dict[str, Any] = {"arrivals": SAME_LATER, "cancels": {1: [1]}, "mended": ("C", "D")}
    recorded: dict[str, Any] = {"connector": "recorder", "eras": CONNECTOR_ERAS}
    recorded_late = recorded | {"eras": ("S", "B2", "D")}
    longer = (Arrival(1, prompt(0, 32), 3), Arrival(2, prompt(0, 32), 3, at=5), Arrival(3, prompt(300, 6), 4, at=2))
    overlapped = replace(IN_CHUNKS, overlap=True)
    # The other eras whose connector runs have no schedulers that charge less than a prompt.
    put_off: dict[str, Any] = {"prepare": believes({2: 8}), "asked_once": True, "connector": "recorder", "eras": ("D",)}
    return [
        Scenario("cancel-overlap", ALL, True, PLAIN, APART, cancels={3: [2]}, mended=("D",)),
        Scenario("cancel-pp", ALL, True, PLAIN, APART, cancels={3: [2]}, mended=("D",), kind="pp"),
        Scenario("cancel-in-prompt", ALL, True, IN_CHUNKS, **in_prompt),
        Scenario("cancel-in-prompt-overlap", ALL, True, overlapped, **(in_prompt | {"mended": ("D",)})),
        Scenario("cancel-in-prompt-pp", ALL, True, overlapped, longer, cancels={1: [1]}, mended=("D",), kind="pp"),
        Scenario("cancel-connector", ALL, False, ALONE, SERVED, cancels={3: [2]}, asked_once=True, **recorded),
        Scenario("preempt-overlap", ALL, True, PLAIN, APART, prepare=pauses(1, 4), mended=("D",)),
        Scenario(
            "preempt-in-prompt",
            ALL,
            True,
            IN_CHUNKS,
            SAME_LATER,
            prepare=pauses(1, 2, "CONTEXT_INIT"),
            mended=("C", "D"),
        ),
        # A resets a request before it releases it. Nobody knows then what has been computed, so nothing is kept.
        Scenario("preempt-connector", ALL, False, ALONE, SERVED, prepare=pauses(1, 4), **recorded_late),
        # The loop puts one off, and then it is cancelled.
        Scenario("put-off-cancelled", BUDGET, True, SMALL, TWO, cancels={1: [2]}, **put_off),
        Scenario("put-off-connector", BUDGET, True, SMALL, TWO, **put_off),
    ]


def failures() -> list[Scenario]:
    found = []
    for eras, suffix, leaks in ((LEAKING, "", True), (("D",), "-d", False)):
        failed: dict[str, Any] = {"arrivals": AFTER_ANOTHER, "fix": ALL, "fails": (1, 2), "leaks": leaks, "eras": eras}
        plain = failed | {"shape": ALONE, "hazard": False}
        recorded = plain | {"connector": "recorder", "eras": tuple(era for era in eras if era in CONNECTOR_ERAS)}
        overlapped = failed | {"shape": PLAIN, "hazard": True, "mended": ("D",)}
        found += [
            Scenario(f"fail-update{suffix}", **plain, prepare=failing("update_requests", 3)),
            Scenario(f"fail-forward{suffix}", **plain, prepare=failing("forward", 3)),
            Scenario(f"fail-sample{suffix}", **plain, prepare=failing("sample_async", 3)),
            Scenario(f"fail-connector{suffix}", **recorded, prepare=failing("update_requests", 3)),
            Scenario(f"fail-update-pp{suffix}", **overlapped, prepare=failing("update_requests", 3), kind="pp"),
            Scenario(f"fail-update-overlap{suffix}", **overlapped, prepare=failing("update_requests", 3)),
            Scenario(
                f"fail-forward-overlap{suffix}", **overlapped, prepare=failing("forward", 3), dies_of="Sampling failed"
            ),
        ]
    few = Shape(blocks=5, max_seq_len=20, windows=(20,), overlap=False)
    ends: dict[str, Any] = {"prepare": failing("prepare_resources", 3), "dies_of": "prepare_resources fails"}
    return [
        *found,
        Scenario("fail-prepare", ALL, False, ALONE, AFTER_ANOTHER, **ends),
        Scenario("fail-blocks", ALL, False, few, TWO, dies_of="block"),
    ]


def drafts() -> list[Scenario]:
    """Three prompts are cached, and there is room for one more. Of the two that are asked for again, one is longer."""
    cached = (Arrival(1, prompt(0, 24), 1), Arrival(2, prompt(200, 16), 1), Arrival(3, prompt(400, 24), 1, at=4))
    asked = (
        Arrival(4, prompt(600, 24), 1, at=8),
        Arrival(5, prompt(0, 24) + prompt(900, 4), 1, at=8),
        Arrival(6, prompt(200, 16) + prompt(950, 4), 1, at=8),
    )
    tight = Shape(blocks=18, max_seq_len=40, windows=(40,), budget=80, overlap=False)
    lost: dict[str, Any] = {"arrivals": (*cached, *asked), "reused_min": 40, "eras": ("S", "B2")}
    return [
        # Where only the first missing block can be asked for, its key has more tokens the more are cached.
        Scenario("admission-prefixes", ADMISSION, True, tight, **lost),
        Scenario("admission-draft", ADMISSION, True, tight, **lost, kind="draft"),
        Scenario(
            "draft-put-off", BUDGET, True, SMALL, TWO, prepare=believes({2: 8}), eras=ESTIMATING_ERAS, kind="draft"
        ),
        Scenario("draft-served", ALL, False, ALONE, SERVED, kind="draft"),
        Scenario("draft-cancelled", ALL, False, ALONE, SERVED, cancels={3: [2]}, kind="draft"),
    ]
