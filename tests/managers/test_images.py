"""Equal tokens may stand for different images. Requests share blocks only where digests tell the images apart."""

from typing import Any

import pytest

from tests.managers.making import Bench, bench
from tests.managers.test_block_names import hashes
from tests.managers.test_notes_of_requests import request as noted_request

CAT, DOG = [1] * 8, [2] * 8
IMAGE = {"image": {"pixel_values": object()}}

POSITIONS = {"mrope_config": {"mrope_position_ids": object(), "mrope_position_deltas": object()}}


def digests(*hashes: list[int], begins: tuple[int, ...] = (2,), lengths: tuple[int, ...] = (4,)) -> dict[str, Any]:
    return {
        "py_multimodal_data": IMAGE,
        "multimodal_hashes": list(hashes),
        "multimodal_positions": list(begins),
        "multimodal_lengths": list(lengths),
    }


def reused_by(b: Bench, request: Any) -> int:
    b.prepare([request])
    return b.reused(request)


@pytest.mark.parametrize("era", ["S", "D"])
def test_images_without_digests_are_found_by_nobody(era: str) -> None:
    with bench(era) as b:
        b.served(1, range(10), py_multimodal_data={"image": "a cat"})
        assert b.cached(range(10)) == 0
        b.served(2, range(10))
        assert reused_by(b, b.request(3, range(10), py_multimodal_data={"image": "a dog"})) == 0


@pytest.mark.parametrize("name", ["prompt_embedding_table", "multimodal_embedding"])
def test_embeddings_without_digests_are_found_by_nobody(name: str) -> None:
    with bench() as b:
        b.served(1, range(10), **{name: object()})
        assert b.cached(range(10)) == 0


def test_digests_of_images_say_nothing_of_another_table_of_embeddings() -> None:
    with bench() as b:
        b.served(1, range(10), **digests(CAT), prompt_embedding_table=object())
        assert reused_by(b, b.request(2, range(10), **digests(CAT))) == 0


@pytest.mark.parametrize("data", [None, {}, POSITIONS])
def test_texts_share(data: Any) -> None:
    with bench() as b:
        b.served(1, range(10), py_multimodal_data=data)
        assert reused_by(b, b.request(2, range(10), py_multimodal_data=data)) > 0


@pytest.mark.parametrize(
    "given",
    [
        {"py_multimodal_data": POSITIONS | IMAGE},
        {"py_multimodal_data": {"mrope_config": {"mrope_position_deltas": object()}}},
        {"py_multimodal_data": {"mrope_config": None}},
        {"py_multimodal_data": object()},
        {"py_multimodal_data": POSITIONS, "multimodal_embedding": object()},
        {"py_multimodal_data": POSITIONS, "multimodal_positions": [2]},
    ],
    ids=["image", "dropped image", "no positions", "unknown data", "embedding", "span without a digest"],
)
def test_positions_beside_an_image_do_not_make_a_text(given: dict[str, Any]) -> None:
    with bench() as b:
        b.served(1, range(10), **given)
        assert b.cached(range(10)) == 0


def test_equal_digests_share_and_others_do_not() -> None:
    with bench() as b:
        b.served(1, range(10), **digests(CAT))
        assert reused_by(b, b.request(2, range(10), **digests(CAT))) > 0
        assert reused_by(b, b.request(3, range(10), **digests(DOG))) == 0
        assert b.cached(range(10)) == 0


@pytest.mark.parametrize(
    "partly",
    [
        digests(CAT, begins=(2, 6), lengths=(4, 2)),
        digests(CAT, DOG),
        digests(CAT, begins=(8,)),
        digests(CAT, begins=(-1,)),
        digests(CAT, lengths=(0,)),
        digests(CAT, DOG, begins=(2, 4), lengths=(4, 4)),
        digests([]),
        {"multimodal_positions": [2], "multimodal_lengths": [4]},
    ],
    ids=[
        "one missing",
        "one too many",
        "behind the end",
        "before the first",
        "empty",
        "overlapping",
        "no digest",
        "none",
    ],
)
def test_digests_that_may_miss_an_image_do_not_count(partly: dict[str, Any]) -> None:
    with bench() as b:
        b.served(1, range(10), **partly)
        assert b.cached(range(10)) == 0
        assert reused_by(b, b.request(2, range(10), **partly)) == 0


def test_a_request_that_does_not_say_whether_it_has_images_shares_nothing() -> None:
    with bench() as b:
        request = b.request(1, range(10))
        del request.py_multimodal_data
        b.prepare([request])
        b.computed(request)
        b.impl.remove_sequence(1, request, False)
        assert b.cached(range(10)) == 0


@pytest.mark.parametrize("is_noted", [True, False])
def test_images_that_upstream_has_dropped_are_not_forgotten_by_a_preemption(is_noted: bool) -> None:
    """Upstream empties the data in place when the prompt has been computed."""
    with bench() as b:
        b.served(9, range(10))
        given = {"py_multimodal_data": dict(IMAGE)}
        request = noted_request(b, [], 1, range(10), **given) if is_noted else b.request(1, range(10), **given)
        b.prepare([request])
        b.computed(request, 10)
        b.impl.store_context_blocks(request)
        request.py_multimodal_data.clear()
        b.impl.remove_sequence(1, request, False)
        request.pause(64)
        assert reused_by(b, request) == 0


def drop_positions(request: Any) -> None:
    """As upstream does when the prompt has been computed, with images and without."""
    request.py_multimodal_data = {"mrope_config": {"mrope_position_deltas": object()}}


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_text_without_its_positions_finds_its_blocks_after_a_preemption(is_noted: bool) -> None:
    with bench() as b:
        given = {"py_multimodal_data": POSITIONS}
        request = noted_request(b, [], 1, range(10), **given) if is_noted else b.request(1, range(10), **given)
        b.prepare([request])
        b.computed(request, 10)
        b.impl.store_context_blocks(request)
        drop_positions(request)
        b.impl.remove_sequence(1, request, False)
        request.pause(64)
        assert reused_by(b, request) > 0


def test_a_text_without_its_positions_keeps_the_names_of_its_blocks() -> None:
    with bench() as b:
        request = b.request(1, range(6), py_multimodal_data=POSITIONS)
        b.prepare([request])
        before = hashes(b, request)
        b.computed(request, token=50)
        drop_positions(request)
        for token in (51, 52):
            b.prepare(generations=[request])
            request.add_new_token(token, 0)
        after = hashes(b, request)
        assert len(after) > len(before) > 0 and after[: len(before)] == before
