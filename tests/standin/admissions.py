"""Traffic on which admission overshoots: what the scheduler counted as reused is not there when it is claimed."""

from typing import Any

from tests.standin.serving import Server

# Blocks of 4 tokens, 40 of them; a batch may have 48 tokens.
EVAPORATION = {"max_num_tokens": 48, "kv_cache_config": {"max_tokens": 160}}

# Blocks of 16 tokens; a leaf that is reused in part goes to the first who wants it.
SHARED_LEAF = {
    "max_num_tokens": 20,
    "kv_cache_config": {"tokens_per_block": 16, "max_tokens": 1280, "copy_on_partial_reuse": False},
}


def family(number: int, length: int) -> list[int]:
    return [1000 * number + position for position in range(length)]


def fill(server: Server) -> None:
    server.run([server.request(0, family(0, 40))])
    for number in (1, 2, 3):
        server.run([server.request(number, family(number, 32))])


def fill_for_evaporation(server: Server) -> list[Any]:
    """Leaves a cache that is full, with a prefix in it that is the next to go; returns the two requests that follow.

    The scheduler charges 32 + 4 tokens. The first request's blocks evict what the second was to reuse (hazard H3).
    """
    fill(server)
    return [server.request(10, family(10, 32)), server.request(11, family(0, 40) + family(11, 4))]


def arrive_between(server: Server) -> list[Any]:
    """The same, but a request whose cache comes from another server evicts the prefix: it computes nothing.

    It is admitted after the batch was scheduled and before the batch is, so claiming the batch first does not help.
    """
    fill(server)
    arriving = server.request(10, family(10, 40), state=server.requests.LlmRequestState.DISAGG_GENERATION_INIT)
    return [arriving, server.request(11, family(0, 40) + family(11, 4)), server.request(12, family(12, 36))]


def leave_a_leaf(server: Server) -> list[Any]:
    """Returns two requests that were promised the same 12 tokens of one cached leaf (surface 4.4, partial reuse).

    The scheduler charges 5 tokens for each; the second finds the leaf taken over.
    """
    server.run([server.request(0, family(0, 12))])
    return [server.request(number, family(0, 12) + family(number, 5)) for number in (1, 2)]
