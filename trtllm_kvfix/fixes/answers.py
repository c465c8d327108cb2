"""Short ways of saying what a probe found."""

from trtllm_kvfix.overlay.fix import Answer, State


def needed(reason: str) -> Answer:
    return Answer(State.NEEDED, reason)


def fixed(reason: str) -> Answer:
    return Answer(State.FIXED_UPSTREAM, reason)


def absent(reason: str) -> Answer:
    return Answer(State.NOT_APPLICABLE, reason)


def unknown(reason: str) -> Answer:
    return Answer(State.UNKNOWN, reason)
