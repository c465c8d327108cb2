"""A router understands our events in vLLM's words. A router here believes every message and nothing else."""

from typing import Any

import pytest

from tests.core.scenes import BLOCK, hashes, leave_behind, manager, prompt, push_to_host, run_transfers, tiers_of
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.events.publisher import FIRST_HALF, Message, Translator
from trtllm_kvfix.native import BlockManager

DIGEST = bytes(range(32))
IMAGE = {"mm_objects": [{"mm_hash": 0x0001020304050607, "offsets": []}]}


class Router:
    """Blocks by hash, each with the mediums that have it."""

    def __init__(self) -> None:
        self.blocks: dict[int, set[str]] = {}

    def hear(self, messages: list[Message]) -> None:
        for message in messages:
            assert isinstance(message, dict)
            if message["type"] == "AllBlocksCleared":
                self.blocks.clear()
                continue
            [block] = message["block_hashes"]
            if message["type"] == "BlockStored":
                assert message["medium"] not in self.blocks.setdefault(block, set())
                assert message["parent_block_hash"] is None or message["parent_block_hash"] in self.blocks
                self.blocks[block].add(message["medium"])
            else:
                self.blocks[block].remove(message["medium"])
                if not self.blocks[block]:
                    del self.blocks[block]


def first_halves(tokens: list[int], **identity: Any) -> list[int]:
    return [one & FIRST_HALF for one in hashes(tokens, **identity)]


def told(m: BlockManager) -> list[Message]:
    return Translator().translate(m.get_latest_events())


def test_a_stored_block_says_all_that_makes_it_what_it_is() -> None:
    m = manager(primary=8, events_max=100)
    identity: dict[str, Any] = {"salt": "tenant", "lora_id": 7, "extra_keys": [(2, 6, DIGEST)]}
    leave_behind(m, 1, prompt(1, 2 * BLOCK), **identity)
    first, second = first_halves(prompt(1, 2 * BLOCK), **identity)
    assert told(m) == [
        {
            "type": "BlockStored",
            "block_hashes": [first],
            "parent_block_hash": None,
            "token_ids": prompt(1, BLOCK),
            "block_size": BLOCK,
            "lora_id": 7,
            "medium": "GPU",
            "lora_name": "7",
            "cache_salt": "tenant",
            "extra_keys": [[(DIGEST.hex(), 2), "tenant"]],
            "block_mm_infos": [IMAGE],
            "group_idx": None,
            "kv_cache_spec_kind": None,
            "kv_cache_spec_sliding_window": None,
        },
        {
            "type": "BlockStored",
            "block_hashes": [second],
            "parent_block_hash": first,
            "token_ids": prompt(1, 2 * BLOCK)[BLOCK:],
            "block_size": BLOCK,
            "lora_id": 7,
            "medium": "GPU",
            "lora_name": "7",
            "cache_salt": "tenant",
            "extra_keys": [[(DIGEST.hex(), -2)]],
            "block_mm_infos": [IMAGE],
            "group_idx": None,
            "kv_cache_spec_kind": None,
            "kv_cache_spec_sliding_window": None,
        },
    ]


def test_a_block_that_nothing_else_tells_apart_has_no_extra_keys() -> None:
    m = manager(primary=8, events_max=100)
    leave_behind(m, 1, prompt(1, BLOCK))
    [message] = told(m)
    assert isinstance(message, dict)
    assert message["extra_keys"] == message["block_mm_infos"] == [None]


def test_a_block_that_moves_is_never_nowhere() -> None:
    m = manager(primary=1, host=1, events_max=100)
    translator = Translator()
    leave_behind(m, 1, prompt(1, BLOCK))
    [stored] = translator.translate(m.get_latest_events())
    push_to_host(m, 2, blocks=1)
    arrived, left = translator.translate(m.get_latest_events())
    assert isinstance(stored, dict) and isinstance(arrived, dict) and isinstance(left, dict)
    assert arrived == {**stored, "medium": "CPU"}
    assert left == {"type": "BlockRemoved", "block_hashes": stored["block_hashes"], "medium": "GPU", "group_idx": None}
    m.reset_reuse_state()
    [removed] = translator.translate(m.get_latest_events())
    assert removed == {**left, "medium": "CPU"}


def test_a_router_that_hears_everything_knows_what_is_where() -> None:
    m = manager(primary=6, host=3, events_max=10_000)
    router, translator = Router(), Translator()
    for request_id in range(200):
        leave_behind(m, request_id, prompt(request_id % 7, (1 + request_id % 5) * BLOCK))
        run_transfers(m)
        router.hear(translator.translate(m.get_latest_events()))
        for family in range(7):
            tokens = prompt(family, 5 * BLOCK)
            where = [{{"primary": "GPU", "host": "CPU"}[tier]} for tier in tiers_of(m, tokens)]
            known = [router.blocks.get(whole & FIRST_HALF, set()) for whole in hashes(tokens)]
            assert [each for each in known if each] == where, (request_id, family)


def test_after_a_gap_a_router_believes_in_nothing_that_has_gone() -> None:
    m = manager(primary=4, events_max=3)
    router, translator = Router(), Translator()
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    router.hear(translator.translate(m.get_latest_events()))
    for request_id in range(2, 6):
        leave_behind(m, request_id, prompt(request_id, 4 * BLOCK))
    assert m.get_kv_cache_stats().events_dropped > 0
    messages = translator.translate(m.get_latest_events())
    assert messages[0] == {"type": "AllBlocksCleared"}
    blocks = {half for family in range(1, 6) for half in first_halves(prompt(family, 4 * BLOCK))}
    for message in messages[1:]:
        assert isinstance(message, dict) and set(message["block_hashes"]) <= blocks


def test_an_adapter_goes_by_its_name() -> None:
    m = manager(primary=8, events_max=100)
    names = {7: "poet"}
    translator = Translator(lora_names=names)
    names[8] = "critic"  # loaded while the server runs
    for lora_id in (7, 8, 9, None):
        leave_behind(m, 1, prompt(1, BLOCK), lora_id=lora_id)
    messages = translator.translate(m.get_latest_events())
    said = [(message["lora_id"], message["lora_name"]) for message in messages if isinstance(message, dict)]
    assert said == [(7, "poet"), (8, "critic"), (9, "9"), (None, None)], "nameless is not the model without adapters"


def test_every_block_of_a_tenant_says_whose_it_is() -> None:
    m = manager(primary=2, host=2, events_max=100)
    translator = Translator()
    leave_behind(m, 1, prompt(1, 2 * BLOCK), salt="tenant")
    push_to_host(m, 2, blocks=2)
    messages = [each for each in translator.translate(m.get_latest_events()) if isinstance(each, dict)]
    stored = [each for each in messages if each["type"] == "BlockStored"]
    assert [(each["medium"], each["cache_salt"]) for each in stored[:4]] == [
        ("GPU", "tenant"),
        ("GPU", "tenant"),
        ("CPU", "tenant"),
        ("CPU", "tenant"),
    ]


@pytest.mark.parametrize(
    ("salt", "text"), [("tenant", "tenant"), (b"\xff\x00", "ff00"), (-(2**63), str(-(2**63))), (None, None)]
)
def test_a_salt_is_text_whatever_it_was(salt: str | bytes | int | None, text: str | None) -> None:
    m = manager(primary=8, events_max=100)
    leave_behind(m, 1, prompt(1, BLOCK), salt=salt)
    [message] = told(m)
    assert isinstance(message, dict)
    assert (message["cache_salt"], message["extra_keys"]) == (text, [None if text is None else [text]])


def test_blocks_of_several_windows_name_theirs_and_the_largest_is_what_a_router_follows() -> None:
    m = manager(primary=8, window_sizes=[BLOCK, 8 * BLOCK], events_max=100)
    leave_behind(m, 1, prompt(1, BLOCK))
    messages = Translator([BLOCK, 8 * BLOCK]).translate(m.get_latest_events())
    names = ("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")
    said = [tuple(message[name] for name in names) for message in messages if isinstance(message, dict)]
    assert said == [(0, "sliding_window", BLOCK), (1, "full_attention", None)]


def test_a_window_that_nobody_mentioned_is_named() -> None:
    m = manager(primary=8, window_sizes=[BLOCK, 8 * BLOCK], events_max=100)
    leave_behind(m, 1, prompt(1, BLOCK))
    with pytest.raises(KvfixError, match=f"a block of window {BLOCK}, but .* windows \\[\\]"):
        told(m)


def test_arrays_have_the_fields_in_vllms_order() -> None:
    m = manager(primary=8, events_max=100)
    leave_behind(m, 1, prompt(1, BLOCK), lora_id=7)
    m.reset_reuse_state()
    [half] = first_halves(prompt(1, BLOCK), lora_id=7)
    stored, removed = Translator(shape="array").translate(m.get_latest_events())
    assert stored == ["BlockStored", [half], None, prompt(1, BLOCK), BLOCK, 7, "GPU", "7", [None], None, None, None]
    assert removed == ["BlockRemoved", [half], "GPU", None]
