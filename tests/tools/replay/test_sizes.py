"""Sizes in blocks and in bytes."""

import pytest

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.sizes import ModelShape, blocks_of, bytes_text


@pytest.mark.parametrize(
    ("text", "blocks"),
    [(7, 7), ("7", 7), (" 0 ", 0), ("1GiB", 1024), ("1.5 gib", 1536), ("10MB", 9), ("2TiB", 2 * 1024**2), ("1B", 0)],
)
def test_sizes_are_blocks_or_bytes(text: str | int, blocks: int) -> None:
    assert blocks_of(text, 1024**2, "--blocks-host") == blocks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-3", "--blocks-host is '-3': write a number of blocks, or bytes with a unit such as 40GiB"),
        ("2.5", "--blocks-host is '2.5': a number of blocks is whole"),
        ("1" * 19, "--blocks-host is '1111111111111111111': a size has at most 18 digits"),
        ("9" * 400 + "GiB", "--blocks-host is '999"),
        ("4Gib/s", "--blocks-host is '4Gib/s': write a number"),
        ("4Q", "--blocks-host is '4Q': unknown unit Q, known are B, KB, KiB, MB, MiB, GB, GiB, TB, TiB"),
        ("1GiB", "--blocks-host is '1GiB': bytes need the size of a block"),
        (2**30 + 1, "--blocks-host is 1073741825: these are 1,073,741,825 blocks, at most 1,073,741,824 can"),
    ],
)
def test_a_size_that_means_nothing_is_refused(text: str | int, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        blocks_of(text, None, "--blocks-host")
    assert str(caught.value).startswith(message)


def test_the_shape_of_a_model_gives_the_bytes_of_a_block() -> None:
    assert ModelShape(layers=32, kv_heads=8, head_dim=128, dtype_bytes=2).bytes_per_block(32) == 4 * 1024**2


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 1024**4, "3.0 TiB"), (2**60, "1,048,576.0 TiB")],
)
def test_bytes_are_shown_in_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert bytes_text(count) == text
