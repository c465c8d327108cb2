"""The books: no false finding whatever a right cache does, and one as soon as an exception is left out."""

import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.canary.world import SIZE, World
from trtllm_kvfix.canary import fills
from trtllm_kvfix.canary.fills import FillBooks, Looks, Write

SEEDS, STEPS = 60, 200


def mutant(old: str, new: str) -> Any:
    text = Path(fills.__file__).read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    module = types.ModuleType("mutant_of_fills")
    exec(compile(text.replace(old, new), "mutant", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_cache_that_does_everything_right_gives_no_finding(lookahead: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(fills, seed, lookahead).play(STEPS)
        assert world.findings == [], seed
        done += world.done
    assert {each for each, count in done.items() if count > 20} == {
        "filled", "reused", "returned", "freed", "live", "offload", "onboard", "copy", "loads", "repeats",
        "taken over", "rewound", "relocated", "again", "cyclic",
        *(() if lookahead else ("slots first",)),
    }  # fmt: skip


TARGET = "        target_tier[target] = fill\n"
OWNER = "        if wanted == 0:\n            "
MUTANTS = {
    "a rewritten block": ("fill.filler != request or fill.tokens > first", "fill.filler != request"),
    "a block of another that is written on": ("fill.filler != request or fill.tokens > first", "fill.tokens > first"),
    "drafts": ("write.end, write.accepted)", "write.end, write.end)"),
    "lookahead": ("write.begin - self._lookahead", "write.begin"),
    "a copied part": ("if not fill.complete or tokens < self._tokens_per_block:", "if not fill.complete:"),
    "offload": (TARGET, "        if target_tier is self.primary: self.primary[target] = fill\n"),
    "onboarding": (TARGET, "        if target_tier is self._host: self._host[target] = fill\n"),
    "a slot's new owner": (OWNER + "self.primary[slot] = Fill(request)", OWNER + "pass"),
    "loads are fills": ("return self._fill(request, sequence, begin, end, end)", "return Looks([], [], 'filled')"),
    "a part that is reused": ("elif fill.tokens < wanted:", "elif not fill.complete:"),
    "a part whose rest a load writes": ("elif wanted < size:", "elif False:"),
    "looks that come too late": ("if now == looks.fills:", "if True:"),
    "looks of which some come too late": ("if fill is was]", "]"),
    "a whole block, but not the next": ("if begin == place * size and end", "if end"),
    "a position that goes back": ("min(sequence.complete, place_begin)", "sequence.complete"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_each_exception_is_needed(name: str) -> None:
    broken = mutant(*MUTANTS[name])
    for seed in range(SEEDS):
        for lookahead in (0, 1):
            try:
                if World(broken, seed, lookahead).play(STEPS).findings:
                    return
            except AssertionError:  # a complete block that it takes for none
                return
    pytest.fail(f"without the exception '{name}' nothing is found that is not there")


class Told:
    """FillBooks of blocks of 4 tokens, and what they said of blocks that nobody was seen to fill."""

    def __init__(self) -> None:
        self.unfilled: list[tuple[int, int, int]] = []
        self.books = FillBooks(SIZE, lambda slot, fill, reader: self.unfilled.append((slot, fill.filler, reader)))

    def run(self, request: int, slots: list[int], begin: int, end: int) -> Looks:
        return self.books.written(Write(request, slots[begin // SIZE :], begin, end, end))


def test_a_block_that_a_cancelled_prompt_has_not_reached_is_said_to_be_unfilled() -> None:
    told = Told()
    told.run(1, [5, 6, 7], 0, 12)
    assert told.books.released(1).slots == [5, 6, 7]
    assert not told.books.admitted(2, [5, 6, 7], 0).slots
    told.run(2, [5, 6, 7], 0, 6)  # cancelled in the middle, and offered whole
    told.books.released(2)
    looks = told.books.admitted(3, [5, 6, 7, 8], 12)
    assert told.unfilled == [(6, 2, 3), (7, 2, 3)], "the last owner's values do not count"
    assert (looks.slots, looks.occasion, looks.reader) == ([5], "reused", 3)
    told.books.admitted(4, [5, 6, 7, 9], 12)
    assert len(told.unfilled) == 2, "it is said once"


def test_a_block_is_complete_once_its_last_position_is_kept_for_certain() -> None:
    told = Told()
    assert not told.books.written(Write(1, [5, 6], 0, 7, 3)).slots
    assert not told.books.primary[5].complete
    looks = told.books.written(Write(1, [5, 6], 3, 7, 4))
    assert (looks.slots, looks.occasion, looks.fills[0].complete) == ([5], "filled", True)


def test_a_whole_block_that_is_written_over_a_copy_is_another_fill() -> None:
    told = Told()
    told.run(1, [5], 0, SIZE)
    told.books.grown(1, [6])
    told.books.moved("copy", 5, 6, SIZE)
    looks = told.books.loaded(1, SIZE, 2 * SIZE)
    assert looks.slots == [6] and looks.fills[0] is not told.books.primary[5]
    told.books.admitted(2, [5, 7], SIZE)
    told.books.moved("copy", 6, 7, SIZE - 1)
    looks = told.books.loaded(2, SIZE, 2 * SIZE)
    assert (looks.slots, looks.fills[0].filler) == ([7], 2)


def test_a_digest_travels_with_its_block() -> None:
    told = Told()
    (fill,) = told.run(1, [5], 0, SIZE).fills
    fill.digests = b"7"
    assert not told.books.moved("offload", 5, 2, SIZE).slots
    told.books.admitted(2, [5], 0)
    assert told.books.moved("onboard", 2, 9, SIZE) == Looks([9], [fill], "returned")
    assert told.books.primary[5].digests is None


def test_what_a_request_has_filled_is_looked_at_when_it_ends_and_what_it_took_is_not() -> None:
    """Also where it has given back what it took, or has computed it again."""
    told = Told()
    told.run(1, [5, 6], 0, 2 * SIZE)
    told.books.admitted(2, [5, 6], 2 * SIZE)
    told.run(2, [5, 6, 7], 2 * SIZE, 3 * SIZE)
    assert told.books.released(2).slots == [7]
    told.books.admitted(3, [5, 6], 2 * SIZE)
    told.books.shrunk(3, 1)
    told.books.grown(3, [8])
    told.books.loaded(3, SIZE, 2 * SIZE)
    assert told.books.released(3).slots == [8]
    told.books.admitted(4, [5, 6], 2 * SIZE)
    told.run(4, [5, 9], SIZE, 2 * SIZE)
    assert told.books.released(4).slots == [9]


def test_a_whole_prompt_of_blocks_that_nobody_knows_is_taken_as_it_is() -> None:
    """Beside a tier that nobody hears of. One of them that is known keeps what is known of it."""
    books = FillBooks(SIZE, lambda *_: pytest.fail("nothing is known"), knows_all=False)
    first = books.admitted(1, [5, 6], 2 * SIZE)
    assert (first.slots, first.occasion, first.reader) == ([5, 6], "reused", 1)
    assert all(fill.complete and fill.tokens == SIZE for fill in first.fills)
    second = books.admitted(2, [7, 6], 2 * SIZE)
    assert second.slots == [7, 6] and second.fills[1] is first.fills[1]
