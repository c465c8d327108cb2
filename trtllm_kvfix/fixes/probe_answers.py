"""Short ways of saying what a probe found, and what it should find."""

from collections.abc import Mapping

from trtllm_kvfix.overlay.fix import Answer, State


def needed(reason: str, *, only_with: str = "") -> Answer:
    return Answer(State.NEEDED, reason, only_with)


def fixed(reason: str) -> Answer:
    return Answer(State.FIXED_UPSTREAM, reason)


def absent(reason: str) -> Answer:
    return Answer(State.NOT_APPLICABLE, reason)


def unknown(reason: str) -> Answer:
    return Answer(State.UNKNOWN, reason)


def in_variants(*, needed: str = "", fixed: str = "", absent: str = "") -> Mapping[str, State]:
    """Return the expected answer of a probe for each variant: `in_variants(needed="A B", fixed="D")`."""
    words = {State.NEEDED: needed, State.FIXED_UPSTREAM: fixed, State.NOT_APPLICABLE: absent}
    return {variant: state for state, variants in words.items() for variant in variants.split()}
