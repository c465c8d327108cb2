"""Blocks of a prompt with media that bears no digest, in upstream's newest V2 manager: equal tokens share them."""

import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from integration.upstream.__main__ import trees
from integration.upstream.arrivals import Arrival
from integration.upstream.assemble import VARIABLE
from integration.upstream.running import apart
from integration.upstream.scenarios import ALL, Scenario, prompt
from integration.upstream.server import Shape
from integration.upstream.v2_methods import MANAGER
from integration.upstream.v2_server import V2Server

FOLDER = os.environ.get(VARIABLE)
PLACES = [(era, root) for era, root in (trees(Path(FOLDER) / "trees", None) if FOLDER else []) if era in ("N", "O")]
PROMPT = prompt(0, 21)  # the same placeholders for both pictures
SERVED = (Arrival(1, PROMPT, 2), Arrival(2, PROMPT, 2, at=6))
SCENARIO = Scenario("media", ALL, False, Shape(), SERVED, kind="v2", eras=("N", "O"))
AT, LENGTH = 8, 10  # of the picture in a prompt
WORDS = 100_000  # tokens of the vocabulary


def spliced(
    vocabulary: int, chunk: list[int], hashes: Any, positions: Any, lengths: Any, first: int, end: int
) -> Sequence[int]:
    """In the place of upstream's function of that name, which no excerpt holds: tokens of a picture are those that its
    digest says, beyond the vocabulary."""
    for (digest, *_), position, length in zip(hashes, positions, lengths, strict=True):
        for at in range(max(first, position), min(end, position + length)):
            chunk[at - first] = vocabulary + digest
    return chunk


class MediaServer(V2Server):
    """Each request has a picture of its own behind its first two blocks."""

    def __init__(self, *given: Any, has_digests: bool) -> None:
        self._has_digests = has_digests
        super().__init__(*given)

    def _manager(self) -> Any:
        manager = super()._manager()
        manager.vocab_size = WORDS
        vars(import_module(MANAGER)).update(
            _resolve_multimodal_run_metadata=lambda _: None, _augment_tokens_with_contiguous_mm_metadata=spliced
        )
        return manager

    def request(self, arrival: Arrival) -> Any:
        made = super().request(arrival)
        made.py_multimodal_data = {"image": {"pixel_values": arrival.id}}
        return made

    def keywords_of(self, arrival: Arrival) -> dict[str, Any]:
        found = super().keywords_of(arrival)
        if self._has_digests:
            found |= {"multimodal_hashes": [[arrival.id] * 8]}
            found |= {"multimodal_positions": [AT], "multimodal_lengths": [LENGTH]}
        return found


@pytest.mark.skipif(not PLACES, reason=f"{VARIABLE} has no tree of an era with a V2 manager")
@pytest.mark.parametrize(("era", "root"), PLACES)
@pytest.mark.parametrize("arm", ["off", "all"])
@pytest.mark.parametrize(("has_digests", "reused"), [(False, len(PROMPT) - 1), (True, AT)], ids=["without", "with"])
def test_a_picture_without_a_digest_is_taken_for_another(
    era: str, root: Path, arm: str, *, has_digests: bool, reused: int
) -> None:
    found = apart(root, era, SCENARIO, arm, partial(MediaServer, has_digests=has_digests))
    assert found.result == "right", found.remark
    began = {number: begin for batch in reversed(found.tree["batches"]) for number, begin, _ in batch["contexts"]}
    assert began == {1: 0, 2: reused}
