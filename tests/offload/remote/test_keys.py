"""Keys: the same for what is the same, on every node and in every release, and for nothing else."""

from typing import Any

import pytest

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.offload.remote import keys as keys_module
from trtllm_kvfix.offload.remote.keys import Given, KeyChain, object_name, root_of, start_of

ROOT = root_of({"model": "m", "layout": "l"})
TOKENS = list(range(12))
IMAGE = b"\x01" * 32


def keys(tokens: list[int] = TOKENS, root: bytes = ROOT, block: int = 4, **identity: Any) -> list[bytes]:
    chain = chain_of(root, block, **identity)
    chain.extend(tokens)
    return list(chain.keys(0, len(tokens)))


def chain_of(root: bytes = ROOT, block: int = 4, given: Given | None = None, **identity: Any) -> KeyChain:
    who = Identity(**identity)
    return KeyChain(start_of(root, who), who.extra_keys, block, given)


def test_keys_stay_what_they_are() -> None:
    """A store outlives a release: other keys for the same contents would empty it, and need another FORMAT."""
    assert keys(salt="s", lora_id=1, extra_keys=((2, 6, IMAGE),))[-1].hex() == GOLDEN


GOLDEN = "3e6c7b899fbda86d6f5e67bd51878e7822f0b63a0f8c6cd6ab8def83c1f56f89"


@pytest.mark.parametrize(
    "other",
    [
        {"salt": "1"}, {"salt": 1}, {"salt": b"1"}, {"salt": ""}, {"lora_id": 0}, {"lora_id": 1},
        {"root": root_of({"model": "m", "layout": "k"})}, {"root": root_of({"model": "ml", "layout": ""})},
        {"tokens": [1, *TOKENS[1:]]}, {"extra_keys": ((0, 1, IMAGE),)},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_differs_makes_all_keys_differ(other: dict[str, Any]) -> None:
    others: list[dict[str, Any]] = [{}, {"salt": "1"}, {"salt": 1}, {"salt": b"1"}, {"lora_id": 0}, {"lora_id": 1}]
    found = keys(**other)
    assert len(set(found)) == 3
    for one in others:
        assert one == other or not set(found) & set(keys(**one))


def test_growth_in_pieces_gives_the_same_keys() -> None:
    chain = chain_of(extra_keys=((5, 9, IMAGE),))
    for at in range(0, 12, 4):
        chain.extend(TOKENS[at : at + 4])
        assert len(chain.keys(0, 3)) == at // 4 + 1
    assert [*chain.keys(0, 3)] == keys(extra_keys=((5, 9, IMAGE),))


def test_a_prefix_has_the_keys_of_its_blocks() -> None:
    assert keys(TOKENS[:8]) == keys()[:2]
    assert keys([*TOKENS[:8], 1, 2, 3, 4])[:2] == keys()[:2] and keys([*TOKENS[:8], 1, 2, 3, 4])[2] != keys()[2]


def test_an_image_counts_from_the_block_that_it_reaches_into() -> None:
    plain, shown = keys(), keys(extra_keys=((5, 9, IMAGE),))
    assert plain[0] == shown[0] and not set(plain[1:]) & set(shown)
    assert keys(extra_keys=((5, 9, b"\x02" * 32),))[1] != shown[1]
    assert keys(extra_keys=((6, 9, IMAGE),))[1] != shown[1]  # the same picture, elsewhere


def test_ranks_have_objects_of_their_own() -> None:
    names = {object_name(key, rank, ranks) for key in keys() for ranks in (1, 2) for rank in range(ranks)}
    assert len(names) == 9


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("known", [0, 4, 8])
def test_keys_that_were_given_are_not_made_again(blocks: int, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they come before the tokens or behind them, and whether the others have been asked for by then."""
    wanted, given = tuple(keys()), Given()
    chain = chain_of(given=given)
    chain.extend(TOKENS[:known])
    chain.keys(0, known // 8)
    given.keys = b"".join(wanted[:blocks])
    chain.extend(TOKENS[known:])
    monkeypatch.setattr(keys_module, "keys_behind", only_behind(max(blocks, known // 4 if known == 8 else 0)))
    assert chain.keys(0, 3) == wanted
    assert chain._tokens == []


def only_behind(named: int) -> Any:
    def keys_behind(parent: bytes, first: int, *rest: Any) -> list[bytes]:
        assert first == named
        return made(parent, first, *rest)

    made = keys_module.keys_behind
    return keys_behind
