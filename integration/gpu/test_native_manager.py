"""Needs torch, and takes a GPU where there is one. Paged attention of an independent library reads the native manager's
memory by the block offsets that kernels get, and agrees with dense attention: over reused, copied, offloaded and
onboarded blocks, in one window and in several."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from integration.gpu.native_attention import Request, Server, Sizes, serving  # noqa: E402  they need torch

# Without a compiler the scores are materialised, which is what a comparison may cost.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


WHOLE = Sizes(blocks=20, host=24, unit=16)
WINDOWS = Sizes(blocks=20, host=24, unit=16, windows=(128, 40, 16), chunk=32)


def crowd(seed: int, count: int, unit: int, blocks_max: int = 4, answer_max: int = 4) -> list[Request]:
    """Prompts that share prefixes, some of them inside a block."""
    chance = random.Random(seed)
    stems = [[1000 * stem + place for place in range(blocks_max * unit)] for stem in range(3)]
    return [
        Request(
            number,
            chance.choice(stems)[: chance.randrange(1, blocks_max * unit)]
            + [10_000 * number + place for place in range(chance.randrange(1, unit))],
            chance.randrange(1, answer_max + 1),
        )
        for number in range(1, count + 1)
    ]


def moves(server: Server) -> dict[str, int]:
    total = server.impl.core.get_kv_cache_stats().total
    names = ("blocks_reused", "blocks_copied", "blocks_offloaded", "blocks_onboarded")
    return {name: getattr(total, name) for name in names}


def test_paged_attention_reads_what_dense_attention_computes() -> None:
    with serving(WHOLE) as server:
        server.serve(crowd(3, 40, 16))
        assert server.compared > 100
        assert all(moves(server).values()), moves(server)
        server.impl.core.check_invariants()


def test_copies_that_are_left_out_show(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(WHOLE) as server:
        monkeypatch.setattr(server.impl._copies._memory, "waves", lambda _: iter(()))
        with pytest.raises(AssertionError, match="not close"):
            server.serve(crowd(3, 40, 16))


def serve_windows(server: Server) -> int:
    """Answers slide out of the windows. Returns how many blocks had left the smallest one, step by step."""
    step, left = server.step, 0

    def counted(batch: Sequence[Request]) -> None:
        nonlocal left
        step(batch)
        left += sum(server.impl.get_num_front_blocks_removed(each.request_id, min(WINDOWS.windows)) for each in batch)

    server.step = counted  # type: ignore[method-assign]
    server.serve(crowd(3, 12, WINDOWS.unit, answer_max=14))
    return left


def test_windows_are_read_as_dense_attention_with_their_mask() -> None:
    with serving(WINDOWS) as server:
        assert serve_windows(server) > 50
        assert server.compared > 100
        assert all(moves(server).values()), moves(server)
        server.impl.core.check_invariants()


def test_a_model_that_looks_behind_its_window_reads_something_else() -> None:
    """Otherwise nothing would show that blocks are given away once they have left the window."""
    with serving(replace(WINDOWS, behind=24)) as server, pytest.raises(AssertionError, match="not close"):
        serve_windows(server)


def test_the_table_of_another_window_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(WINDOWS) as server:
        write = server.impl.copy_batch_block_offsets

        def mixed_up(table: Any, *given: Any) -> None:
            write(table, *given)
            table[:] = table[[1, 2, 0]]

        monkeypatch.setattr(server.impl, "copy_batch_block_offsets", mixed_up)
        with pytest.raises(AssertionError, match="not close"):
            serve_windows(server)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: kernels are compiled")
@pytest.mark.parametrize("windows", [(1024,), (1024, 200, 128)])
def test_compiled_kernels_read_the_same(windows: tuple[int, ...]) -> None:
    with serving(Sizes(blocks=12, host=8, unit=128, windows=windows)) as server:
        server.attend = torch.compile(server.attend, dynamic=False)
        server.serve([Request(each, [*range(330), each], 12) for each in (1, 2)] + crowd(5, 4, 128, 2), at_once=2)
        assert server.compared > 20
