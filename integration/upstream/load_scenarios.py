"""Connectors that have something: synchronous and asynchronous loads, cancelled ones, reservations, token budgets."""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.loads import Offer
from integration.upstream.scenarios import ALL, BUDGET, CONNECTOR_ERAS, PLAIN, Scenario, believes, prompt

PLAIN_LOOP = replace(PLAIN, overlap=False)
SMALL = replace(PLAIN_LOOP, budget=16)
SMALL_CHUNKS = replace(SMALL, chunked=True)
# The second prompt lies outside for the most part.
TWO = (Arrival(1, prompt(0, 10), 5), Arrival(2, prompt(100, 15), 4, at=1))
# While the second is being loaded and is cancelled, a third comes with its prompt.
THREE = (*TWO, Arrival(3, prompt(100, 15), 3, at=4))
SYNC = {2: Offer(12)}
ASYNC = {2: Offer(12, polls=3)}


def loading() -> list[Scenario]:
    v1: dict[str, Any] = {"eras": CONNECTOR_ERAS}
    v2: dict[str, Any] = {"eras": ("N", "O"), "kind": "v2"}
    return [
        *_loads("load", "loading", v1),
        *_loads("v2-load", "loading", v2),
        *_loads("v2-reserve", "reserving", v2),
        *(_grouped(name, v2 | {"connector": kind}) for name, kind in (("load", "loading"), ("reserve", "reserving"))),
        *_budgets(),
    ]


def _loads(name: str, connector: str, where: dict[str, Any]) -> list[Scenario]:
    given = where | {"connector": connector}
    overlap: dict[str, Any] = {"hazard": True, "mended": ("D",)}
    early: dict[str, Any] = {} if where.get("kind") == "v2" else {"hazard": True, "calls_differ": True}
    return [
        _of(f"{name}-sync", TWO, offers=SYNC, reused_min=12, **given),
        _of(f"{name}-sync-overlap", TWO, offers=SYNC, shape=PLAIN, **overlap, **given),
        _of(f"{name}-async", TWO, offers=ASYNC, reused_min=12, **given),
        _of(f"{name}-async-overlap", TWO, offers=ASYNC, shape=PLAIN, **overlap, **given),
        # Upstream offers the blocks of the cancelled one for reuse, and nothing has been written there. V2 keeps them.
        _of(f"{name}-cancelled", THREE, offers={2: Offer(12, polls=9)}, cancels={3: [2]}, **given, **early),
    ]


def _grouped(name: str, given: dict[str, Any]) -> Scenario:
    """The load ends where one layer group no longer reads its beginning. `connector-prefixes` takes an answer
    there, and gives the pages before the window back before others are taken."""
    groups = replace(PLAIN_LOOP, windows=(64, 16))
    long = (Arrival(1, prompt(0, 24), 5), Arrival(2, prompt(100, 30), 6, at=1))
    given = given | {"slots_differ": name == "load"}
    return _of(f"v2-{name}-groups", long, shape=groups, offers={2: Offer(24, polls=3)}, reused_min=24, **given)


def _budgets() -> list[Scenario]:
    """The second comes with the first; its load makes less of it than the scheduler believes to be cached."""
    together = (Arrival(1, prompt(0, 12), 5), Arrival(2, prompt(100, 15), 4))
    # The third comes when the load of the second is over, and both are computed.
    later = (*together, Arrival(3, prompt(200, 12), 3, at=2))
    part = {2: Offer(4)}
    believed = believes({2: 12})
    v1: dict[str, Any] = {"eras": ("D",), "connector": "loading", "fix": BUDGET, "believed": believed}
    v2: dict[str, Any] = {"eras": ("N", "O"), "kind": "v2", "fix": BUDGET, "shape": SMALL}
    found = [
        _of("load-budget-sync", together, shape=SMALL, offers=part, hazard=True, **v1),
        _of("load-budget-async", later, shape=SMALL, offers={2: Offer(4, polls=2)}, hazard=True, **v1),
        # An asynchronous load takes nothing of the budget while it lasts.
        _of("load-budget-kept", together, shape=SMALL, offers={2: Offer(4, polls=2)}, **v1),
    ]
    for name, connector in (("v2-load-budget", "loading"), ("v2-reserve-budget", "reserving")):
        # The charge is made when the pages are claimed, so nothing is ever too much and nothing may starve.
        found += [
            _of(f"{name}-fits", together, offers=SYNC, connector=connector, **v2),
            _of(f"{name}-sync", later, offers=part, connector=connector, **v2),
            _of(f"{name}-async", later, offers=ASYNC, connector=connector, **v2),
            _of(f"{name}-chunked", later, offers=part, connector=connector, **v2 | {"shape": SMALL_CHUNKS}),
        ]
    return found


def _of(name: str, arrivals: Any, *, shape: Any = PLAIN_LOOP, hazard: bool = False, **given: Any) -> Scenario:
    believed = given.pop("believed", None)

    def prepare(server: Any) -> None:
        attach(server)
        if believed is not None:
            believed(server)

    return Scenario(name, given.pop("fix", ALL), hazard, shape, arrivals, prepare=prepare, **given)


def attach(server: Any) -> None:
    server.connector.worker.attach(server)
