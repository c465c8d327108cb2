"""Numbers agree with the words beside them."""

import pytest

from trtllm_kvfix.plurals import form, number_of


@pytest.mark.parametrize(("count", "text"), [(0, "0 races"), (1, "1 race"), (2, "2 races"), (2000, "2,000 races")])
def test_only_one_is_singular(count: int, text: str) -> None:
    assert number_of(count, "race") == text


def test_a_plural_of_its_own_is_given() -> None:
    assert (number_of(1, "fix", "fixes"), number_of(2, "fix", "fixes")) == ("1 fix", "2 fixes")
    assert [form(count, "is", "are") for count in (0, 1, 2)] == ["are", "is", "are"]
