"""Small worlds: few tokens, short prompts and tight pools, so that prefixes collide and room runs out."""

from hypothesis import strategies as st

from .model import Config, Request, Retention, WindowShape
from .model.values import Extras, Range, Tokens
from .native_values import CARRIERS

tokens = st.sampled_from([0, 0, 0, 1, 2])
indices = st.integers(0, 30)
chunks = st.sampled_from([None, None, 1, 2, 3, 7])
carriers = st.sampled_from(CARRIERS)
tiers = st.sampled_from([None, "primary", "host"])
salts = st.sampled_from([None, None, None, None, "a", b"a", "", b"", 1, -1])
durations = st.none() | st.integers(0, 6)
priorities = st.sampled_from([0, 20, 35, 35, 60, 100])


@st.composite
def configs(draw: st.DrawFn) -> Config:
    tokens_per_block = draw(st.sampled_from([2, 3, 1, 4]))
    # In blocks and tokens: a window need not end where a block does, but it holds one.
    spread = draw(st.sampled_from([None, None, [(1, 0)], [(1, 1), (2, 1)], [(1, 0), (2, 0), (3, 2)]]))
    sizes = [None] if spread is None else [tokens_per_block * blocks + more for blocks, more in spread]
    host = draw(st.sampled_from([4, 8, 2, 0, 1]))
    return Config(
        tokens_per_block=tokens_per_block,
        windows=tuple(WindowShape(size, draw(st.sampled_from([12, 8, 16, 24, 6, 3])), host) for size in sizes),
        max_beam_width=draw(st.sampled_from([1, 1, 2, 3])),
        block_reuse=draw(st.sampled_from([True] * 9 + [False])),
        partial_reuse=draw(st.sampled_from([True, True, True, False])),
        copy_on_partial_reuse=draw(st.sampled_from([True, True, False])),
        offload_priority_min=draw(st.sampled_from([30, 30, 0, 50])),
        host_admission=draw(st.sampled_from(["all", "adaptive"])) if host else "all",
    )


@st.composite
def prompts(draw: st.DrawFn) -> Tokens:
    """One token over and over, then a few others: most prompts begin like another one."""
    trunk = [draw(st.sampled_from([0, 0, 1]))] * draw(st.integers(1, 9))
    return tuple(trunk + draw(st.lists(tokens, max_size=4)))


@st.composite
def retentions(draw: st.DrawFn) -> Retention:
    cuts = sorted(draw(st.sets(st.integers(0, 12), max_size=4)))
    ranges = [Range(a, b, draw(priorities), draw(durations)) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    if len(cuts) % 2:
        ranges.append(Range(cuts[-1], None, draw(priorities), draw(durations)))
    return Retention(tuple(ranges), draw(priorities), draw(durations))


@st.composite
def spans(draw: st.DrawFn, length: int) -> Extras:
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=4)))
    return tuple((a, b, draw(st.sampled_from([b"x", b"yy"]))) for a, b in zip(cuts[::2], cuts[1::2], strict=False))


@st.composite
def requests(draw: st.DrawFn, request_id: int, beam_width_max: int) -> Request:
    prompt = draw(prompts())
    kind = draw(st.sampled_from(["plain", "kept", "plain", "kept", "any"]))
    if kind == "plain":
        return Request(request_id, prompt)
    if kind == "kept":
        everything = Range(0, None, draw(priorities), draw(durations))
        return Request(request_id, prompt, retention=Retention((everything,), draw(priorities), draw(durations)))
    return Request(
        request_id,
        prompt,
        beam_width=draw(st.integers(1, beam_width_max)),
        lora_id=draw(st.sampled_from([None, None, None, 1])),
        salt=draw(salts),
        extra_keys=draw(st.just(()) | spans(len(prompt))),
        retention=draw(st.just(Retention()) | retentions()),
    )
