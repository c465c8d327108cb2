"""A version is found in the row whose first and last release it lies between."""

import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.overlay import releases

# In the order in which the package index published them on each branch.
PUBLISHED = {
    "1.1.0rc5": "A",
    "1.1.0": "A",
    "1.2.0rc6.post2": "A or B",
    "1.2.0": "B",
    "1.2.1": "B",
    "1.3.0rc0": "B",
    "1.3.0rc5.post2": "B",
    "1.3.0rc9": "B or B2",
    "1.3.0rc12.post1": "B2",
    "1.3.0rc13": "C",
    "1.3.0rc15.post1": "C",
    "1.3.0rc19": "C or D",
    "1.3.0rc22.post1": "D",
    "1.3.0rc29": "D",
    "1.4.0rc1": "D or N",
    "1.4.0rc4": "D or N",
    "1.2.1+cu130": "B",
}


@pytest.mark.parametrize(("version", "shown"), PUBLISHED.items())
def test_release_is_found(version: str, shown: str) -> None:
    found = releases.of(version)
    assert found is not None and found.shown == shown


@pytest.mark.parametrize("version", [None, "", "1.0.0", "1.3.0", "1.4.0rc5", "0.0.0+standin.B", "main"])
def test_what_is_not_on_the_list_is_not_guessed(version: str | None) -> None:
    assert releases.of(version) is None


def test_rows_follow_one_another_and_name_variants() -> None:
    bounds = [releases.key_of(each) for row in releases.KNOWN for each in (row.first, row.last)]
    assert None not in bounds and bounds == sorted(bounds, key=lambda key: key or ())
    assert {variant for row in releases.KNOWN for variant in row.variants} <= {*VARIANTS, "N"}
