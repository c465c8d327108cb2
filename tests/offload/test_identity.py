"""A request is given only blocks of its own identity: a field that cannot be read is never taken for "none"."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.blocks import identity
from trtllm_kvfix.blocks.identity import Identity, identity_of
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.patches import WholeRequests

from .stand_in import offloading
from .test_kept_blocks import DEVICE_BLOCKS, FILLS_THE_DEVICE, HOST_BLOCKS, PROMPT

PLAIN = {
    "cache_salt_id": None, "lora_task_id": None, "py_multimodal_data": None,
    "sampling_config": SimpleNamespace(beam_width=1),
}  # fmt: skip


def of(**names: Any) -> Identity | None:
    return identity_of(SimpleNamespace(**(PLAIN | names)))


@pytest.mark.parametrize("name", PLAIN)
def test_what_cannot_be_read_may_be_anything(name: str) -> None:
    assert identity_of(SimpleNamespace(**PLAIN)) is not None
    assert identity_of(SimpleNamespace(**{key: value for key, value in PLAIN.items() if key != name})) is None


def test_one_salt_that_can_be_read_is_enough() -> None:
    request = SimpleNamespace(**{key: value for key, value in PLAIN.items() if key != "cache_salt_id"})
    request.cache_salt = "tenant"
    assert identity_of(request) == Identity(salt="tenant")
    assert of(cache_salt_id=7, cache_salt="tenant") == Identity(salt=7)
    assert of(cache_salt="tenant") == Identity(salt="tenant")


def test_images_without_digests_are_seen_where_the_pytorch_backend_has_them() -> None:
    assert of(py_multimodal_data={"image": object()}) is None
    assert of(py_multimodal_data={}) == Identity()
    digests = {"multimodal_hashes": [[1] * 8], "multimodal_positions": [4], "multimodal_lengths": [8]}
    assert of(py_multimodal_data={"image": object()}, **digests) is not None


def test_a_digest_that_a_request_for_blocks_refuses_is_none() -> None:
    def with_words(count: int) -> Identity | None:
        return of(multimodal_hashes=[[1] * count], multimodal_positions=[0], multimodal_lengths=[2])

    longest = with_words(64)
    assert longest is not None
    assert longest.sequence(1, np.array([1, 2], np.int32)).extra_keys == list(longest.extra_keys)
    assert with_words(65) is None


def loaded_of_another_picture(variant: str) -> float:
    """Blocks. The tokens of two prompts are the same; the pictures that they stand for are not, and have no digests."""
    before = counters.offload_loaded_blocks.value
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        server.run([server.request(1, PROMPT, 1, py_multimodal_data={"image": "a cat"})])
        server.run([server.request(2, FILLS_THE_DEVICE, 1)])
        server.run([server.request(3, PROMPT, 1, py_multimodal_data={"image": "a dog"})])
        server.close()
    return counters.offload_loaded_blocks.value - before


@pytest.mark.parametrize("variant", VARIANTS)
def test_another_picture_is_not_served(variant: str) -> None:
    assert loaded_of_another_picture(variant) == 0


def test_blocks_of_another_picture_are_loaded_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(identity, "may_have_images", lambda _: False)
    assert loaded_of_another_picture("B") == 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_bound_part_of_a_request_alone_is_left_alone(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the note of the batch, not even requests without images are known to have none."""
    monkeypatch.setattr(WholeRequests, "note", lambda *_: None)
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        skipped = counters.offload_requests_skipped.value
        server.run([server.request(1, PROMPT, 1)])
        server.close()
        assert counters.offload_requests_skipped.value == skipped + 1
