"""Needs torch, and takes a GPU where there is one. Paged attention of an independent library reads the native manager's
memory by the block offsets that kernels get, and agrees with dense attention: over reused, copied, offloaded and
onboarded blocks."""

import random

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from integration.gpu.native_attention import Request, Server, serving  # noqa: E402  they need torch

# Without a compiler the scores are materialised, which is what a comparison may cost.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


def crowd(seed: int, count: int, unit: int, blocks_max: int = 4) -> list[Request]:
    """Prompts that share prefixes, some of them inside a block."""
    chance = random.Random(seed)
    stems = [[1000 * stem + place for place in range(blocks_max * unit)] for stem in range(3)]
    return [
        Request(
            number,
            chance.choice(stems)[: chance.randrange(1, blocks_max * unit)]
            + [10_000 * number + place for place in range(chance.randrange(1, unit))],
            chance.randrange(1, 5),
        )
        for number in range(1, count + 1)
    ]


def moves(server: Server) -> dict[str, int]:
    total = server.impl.core.get_kv_cache_stats().total
    names = ("blocks_reused", "blocks_copied", "blocks_offloaded", "blocks_onboarded")
    return {name: getattr(total, name) for name in names}


def test_paged_attention_reads_what_dense_attention_computes() -> None:
    with serving(blocks=20, host=24, tokens_per_block=16) as server:
        server.serve(crowd(3, 40, 16))
        assert server.compared > 100
        assert all(moves(server).values()), moves(server)
        server.impl.core.check_invariants()


def test_copies_that_are_left_out_show(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(blocks=20, host=24, tokens_per_block=16) as server:
        monkeypatch.setattr(server.impl._copies._memory, "waves", lambda _: iter(()))
        with pytest.raises(AssertionError, match="not close"):
            server.serve(crowd(3, 40, 16))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: kernels are compiled")
def test_compiled_kernels_read_the_same() -> None:
    with serving(blocks=12, host=8, tokens_per_block=128) as server:
        server.attend = torch.compile(server.attend, dynamic=False)
        server.serve([Request(each, [*range(300), each], 12) for each in (1, 2)] + crowd(5, 4, 128, 2), at_once=2)
        assert server.compared > 20
