"""Whatever all engines of a process share, and a call writes, is on this list with what guards it."""

from tests.fixes.applied import applied, standing_in
from tests.fixes.shared_state import snapshot, written
from tests.torture.engines import SERVINGS, needed, serve_side_by_side

# What a fix writes of its own or of a module's. An engine's own state belongs on the engine's objects: its manager, its
# table, its executor.
GUARDED = {
    "BudgetKeeper._kept": "one entry for each manager, set and taken in one step of the interpreter; never walked",
    "BudgetKeeper._limits": "one entry for each engine, set and taken in one step of the interpreter; never walked",
    "BudgetKeeper._learned_last": "of whichever engine scheduled last; a lost update costs one look-up",
    "CopyFilter._forgotten": "one entry for each filter and tensor, and forgetting one twice ships it once more",
    "CopyFilter._shipped": "of each tensor, set and taken in one step of the interpreter",
    "Counter._value": "a lock in each counter",
    "CounterByFix._value": "the same",
    "CounterByFix._by_fix": "the same",
    "Fuse.may_blow": "only ever set to the same value",
    "Living._references": "replaced as a whole under a lock",
    "Observation._attempts_left": "of the build; a lost update costs one attempt",
    "Observation.store_obeys_position": "of the build, so every engine sees the same",
    "staging.in_use._kept": "a lock",
    "staging.in_use._lost": "a lock",
    "ReplayFence._reads": "a lock around what is added, and around a walk",
    "Stagers._entries": "a lock around what is added; entries are found by identity, and go in one step",
    "Stagers._gone": "added to and taken from in one step of the interpreter",
    "Votings._of": "a lock around what is added",
    "fixes.staged_offsets_v2.fix.staged_launch_unscaled.<locals>.stage.scratch": "one entry for each table",
    "staging.stagers._has_memory": "what is set for a type is the same each time",
}


def test_what_engines_share_is_on_the_list() -> None:
    found: set[str] = set()
    for serving in SERVINGS:
        with standing_in(serving.variant), applied(needed(serving.variant)) as registry:
            before = snapshot(registry)
            assert serve_side_by_side(serving, rounds=1, requests=16, alike=True) == [0, 0]
            found |= written(before, snapshot(registry))
    assert found - set(GUARDED) == set(), "own it by the engine, or say what guards it"
    # Some of the others go with their engine, so they are found where it still lives.
    assert found >= {"Counter._value", "Observation._attempts_left"}, f"the walk finds no more than {sorted(found)}"
