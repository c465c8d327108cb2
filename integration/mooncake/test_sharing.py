"""Two engines on one store: what the same tokens and the same model are, they share, and nothing else."""

from pathlib import Path

from integration.mooncake.engines import MakeEngine
from integration.mooncake.nodes import Node, until

PROMPT = list(range(100, 148))
BEHIND = 44  # the block with the last token is always computed


def is_alive(process: int) -> bool:
    """Rather than gone, or left by a parent that was killed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_one_engine_has_computed_another_one_loads(make_engine: MakeEngine, node: Node) -> None:
    first, second = make_engine(), make_engine()
    computed = first.serve(PROMPT)
    first.ask("settle")
    loaded = second.serve(PROMPT)
    assert computed.loaded == 0 and loaded.loaded == BEHIND
    assert loaded.answer == computed.answer and loaded.reads
    counts = second.ask("counts")
    assert counts["offload_remote_hit_tokens"] == BEHIND
    assert second.serve(PROMPT).loaded == BEHIND  # from its own host tier
    assert second.ask("counts")["offload_remote_fetched_blocks"] == counts["offload_remote_fetched_blocks"]
    del node


def test_other_salts_models_and_tokens_share_nothing(make_engine: MakeEngine, node: Node) -> None:
    first, second, other = make_engine(), make_engine(), make_engine(model="another model")
    first.serve(PROMPT, salt=1)
    first.ask("settle")
    assert second.serve(PROMPT).loaded == 0
    assert second.serve(PROMPT, salt=2).loaded == 0
    assert second.serve([1, *PROMPT], salt=1).loaded == 0
    assert other.serve(PROMPT, salt=1).loaded == 0
    assert second.serve([*PROMPT[:24], *range(24)], salt=1).loaded == 24  # what they have in common
    del node


def test_an_engine_that_was_killed_finds_its_prefixes(make_engine: MakeEngine, node: Node) -> None:
    first = make_engine()
    answer = first.serve(PROMPT).answer
    first.ask("settle")
    porter, _ = first.ask("porter")
    first.kill()
    until(lambda: not is_alive(porter), "its porter stays")
    again = make_engine().serve(PROMPT)
    assert again.loaded == BEHIND and again.answer == answer
    del node


def test_an_engine_brings_memory_of_its_own(make_engine: MakeEngine) -> None:
    """Its memory serves for as long as the engine runs."""
    first = make_engine(segment_bytes="64MiB")
    first.serve(PROMPT)
    first.ask("settle")
    assert make_engine().serve(PROMPT).loaded == BEHIND
    porter, _ = first.ask("porter")
    first.close()
    assert not is_alive(porter)
    assert make_engine().serve(PROMPT).loaded == 0


def test_the_host_pool_is_refilled_from_the_store(make_engine: MakeEngine, node: Node) -> None:
    engine = make_engine()
    answer = engine.serve(PROMPT).answer
    engine.ask("forget_host_tier")
    again = engine.serve(PROMPT)
    assert again.loaded == BEHIND and again.answer == answer
    assert engine.ask("blocks_in_use") == 0
    del node
