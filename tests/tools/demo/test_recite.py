"""The model that recites: out of its context alone, with a margin, and in the voice of its adapter."""

import numpy as np
import pytest

from tests.engine import dense
from trtllm_kvfix.tools.demo import scenes
from trtllm_kvfix.tools.demo.scenes import loud, quiet

MODEL = scenes.reciter(512)
NOTES = "the ferry leaves at nine.\nmy boat is called heron.\nthe tide was at the door.\n"


def said(context: str, letters: int, adapter: int = 0) -> tuple[str, float]:
    tokens, margin = dense.answer(MODEL, scenes.encode(context), letters, adapter)
    return scenes.decode(tokens), margin


def test_it_goes_on_as_the_text_goes_on_that_it_has_read() -> None:
    text, margin = said(NOTES + "\nmy boat is ", 14)
    assert text == "called heron.\n"
    assert margin > 1


def test_an_adapter_shouts_and_goes_on_all_the_same() -> None:
    text, margin = said(NOTES + "\nmy boat is ", 14, adapter=1)
    assert text == loud("called heron.\n") and quiet(text) == "called heron.\n"
    assert margin > 1


def test_what_it_has_not_read_it_cannot_say() -> None:
    other = NOTES.replace("heron", "whale")
    assert said(other + "\nmy boat is ", 14)[0] == "called whale.\n"


def test_of_equal_places_the_first_is_taken() -> None:
    text = "we sail at noon to ostend.\nwe sail at noon to dover.\n\nwe sail at noon to "
    assert said(text, 8)[0] == "ostend.\n"


@pytest.mark.parametrize("length", [120, 480])
def test_any_text_of_any_letters_is_found_again(length: int) -> None:
    random = np.random.default_rng(length)
    text = random.integers(0, len(scenes.QUIET), length).tolist()
    begin = int(random.integers(scenes.LOOKS_BACK, length - 30))
    tokens, margin = dense.answer(MODEL, text + text[begin - scenes.LOOKS_BACK : begin], 12)
    assert tokens == text[begin : begin + 12]
    assert margin > 1


def test_letters_are_told_apart() -> None:
    assert len(set(scenes.LETTERS)) == len(scenes.LETTERS) == 2 << scenes.BITS
    assert scenes.decode(scenes.encode(NOTES)) == NOTES
